"""Work in order on several threads, a bounded number of jobs ahead: the first error is the first job's."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Job = TypeVar("Job")
Done = TypeVar("Done")

AHEAD = 2  # jobs a thread that may be begun before the first of them is taken


def in_order(jobs: Iterable[Job], work: Callable[[Job], Done], threads: int) -> Generator[tuple[Job, Done]]:
    """(job, work(job)) in the order of the jobs. The first failing job's error is raised in its place, and no other's.

    When the caller stops taking, jobs that have begun are finished and the others forgotten.
    """
    pool = ThreadPoolExecutor(threads, "engramctl")
    waiting: deque[tuple[Job, Future[Done]]] = deque()
    try:
        for job in jobs:
            waiting.append((job, pool.submit(work, job)))
            if len(waiting) > AHEAD * threads:
                yield _take(waiting)
        while waiting:
            yield _take(waiting)
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _take(waiting: deque[tuple[Job, Future[Done]]]) -> tuple[Job, Done]:
    job, future = waiting.popleft()
    return job, future.result()
