"""Submits a few tasks for a tenant and waits for them.

python examples/client.py --api http://127.0.0.1:8080 --tenant team-a --tasks 5
"""

from __future__ import annotations

import argparse

from dgpu.client import Client


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--api", help="the scheduler; without it the one that `dgpu up` started")
    parser.add_argument("--tenant", default="default")
    parser.add_argument("--tasks", type=int, default=5)
    options = parser.parse_args()

    client = Client(options.api)
    submitted = [
        client.submit(
            name=f"example-{number}",
            tenant_id=options.tenant,
            gpu_count=1,
            command=f'echo "hello from $DGPU_TASK_ID on $CUDA_VISIBLE_DEVICES"; sleep {number % 3}',
        ).task_id
        for number in range(options.tasks)
    ]
    for task in client.wait(*submitted):
        said = client.logs(task.task_id).strip()
        print(f"{task.task_id}  {task.status:<8} {task.node}  {said}")


if __name__ == "__main__":
    main()
