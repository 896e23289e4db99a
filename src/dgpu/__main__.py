"""`python -m dgpu` is `dgpu`."""

from dgpu.cli.main import main

if __name__ == "__main__":
    main()
