"""The cores and the number of threads that dnncore and its peers share."""

from __future__ import annotations

import os

__all__ = ["keep_to", "thread_count", "thread_settings"]

THREAD_VARIABLES = ("DNNCORE_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")


def thread_settings(threads: int) -> dict[str, str]:
    """Environment variables that set the number of threads. Libraries read them while loading."""
    return dict.fromkeys(THREAD_VARIABLES, str(threads))


def thread_count() -> int:
    """The number of threads of each side, from `thread_settings` or else the number of cores."""
    return int(os.environ.get("OMP_NUM_THREADS") or os.cpu_count() or 1)


def keep_to(threads: int) -> None:
    """Restrict this process and its children to as many cores as threads, if the system can.

    SYCL and TBB derive their number of threads from the number of cores.
    """
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])
