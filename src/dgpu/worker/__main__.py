"""`python -m dgpu.worker`: started by an agent, never by hand."""

import os
import sys

from dgpu.worker.main import main

# Processes that a function starts with multiprocessing import this module under another name.
if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # Threads that a function has left behind must not keep the GPU.
    os._exit(code)
