"""A function that does nothing, for dgpu and for the systems beside it."""

from __future__ import annotations

import os

import dgpu


def plain(number: int) -> int:
    return number


@dgpu.task(timeout=60, max_workers=8)
def nothing(number: int) -> int:
    return number


def celery_app():
    from celery import Celery

    url = os.environ["BENCH_REDIS"]
    app = Celery("_functions", broker=url, backend=url)
    app.task(name="plain")(plain)
    return app


if "BENCH_REDIS" in os.environ:
    app = celery_app()
