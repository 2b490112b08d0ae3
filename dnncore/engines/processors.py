"""The number of processors that this process may use, by its affinity and control groups."""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Iterator
from pathlib import Path

__all__ = ["available_processors", "quota"]

GROUPS = Path("/sys/fs/cgroup")  # the usual folder of control groups on Linux
OWN_GROUPS = Path("/proc/self/cgroup")


def available_processors() -> int:
    """Return the number of processors that this process may use at once, at least 1.

    These are the processors of its affinity, which `taskset` sets, but not more than the quota of
    its control groups, rounded up.
    """
    count = os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        count = len(os.sched_getaffinity(0))
    limit = _own_quota()
    return max(1, math.ceil(limit)) if limit < count else count


@functools.cache
def _own_quota() -> float:
    return quota(GROUPS, OWN_GROUPS)


def quota(groups: Path, own_groups: Path) -> float:
    """Return the quota of the control groups as a number of processors; infinity without a limit.

    groups: the folder where control groups are mounted.
    own_groups: the file that lists the groups of the process, in lines "number:controllers:path".

    A limit of a group applies to all groups in it. Both versions of control groups are read.
    """
    try:
        lines = own_groups.read_text().splitlines()
    except OSError:  # not Linux
        return math.inf
    return min(_quotas(groups, lines), default=math.inf)


def _quotas(groups: Path, lines: list[str]) -> Iterator[float]:
    for line in lines:
        _, controllers, path = line.split(":", 2)
        names = controllers.split(",")
        mounts = [] if controllers else [groups, groups / "unified"]
        if "cpu" in names:
            mounts = [groups / controllers, groups / "cpu"]
        for mount in mounts:
            group = mount / path.strip("/")
            for folder in (group, *group.parents):
                yield _quota_of(folder)
                if folder == mount:
                    break


def _quota_of(group: Path) -> float:
    """Return the limit of one group; infinity if there is no limit or it cannot be read."""
    try:
        if (group / "cpu.max").exists():
            limit, period = (group / "cpu.max").read_text().split()
        else:
            limit = (group / "cpu.cfs_quota_us").read_text()
            period = (group / "cpu.cfs_period_us").read_text()
        return int(limit) / int(period) if int(limit) > 0 else math.inf
    except (OSError, ValueError, ZeroDivisionError):  # ValueError: "max"
        return math.inf
