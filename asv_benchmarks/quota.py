"""Limits on the processor time of processes, by control groups of Linux, as containers have them."""

from __future__ import annotations

import contextlib
import functools
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from tensorops.benchmarks.measuring import CannotMeasureError
from tensorops.hardware.cpu import control_groups
from tensorops.hardware.machine import Machine

PERIOD = 100_000  # microseconds; the default of containers


@contextlib.contextmanager
def control_group(processors: float, machine: Machine | None = None) -> Iterator[Callable[[int], None]]:
    """Create a control group that has that many processors on average.

    Yields
    ------
    callable
        Moves a process, given by its number, into the group. It must have ended when the block is left.

    Raises
    ------
    CannotMeasureError
        If no such group can be created here.
    """
    machine = machine or Machine.here()
    problems = []
    for above in dict.fromkeys(control_groups(machine, "cpu")):
        try:
            group = _create(machine.root / above, processors)
        except OSError as error:
            problems.append(str(error))
            continue
        try:
            yield functools.partial(_move, group)
        finally:
            _remove(group)
        return
    reason = problems[0] if problems else "this system has no control groups, which Linux has"
    raise CannotMeasureError(f"no quota of processor time can be set: {reason}")


def _create(above: Path, processors: float) -> Path:
    if not (above / "cgroup.procs").exists():
        raise FileNotFoundError(f"{above} is not a control group")
    group, quota = Path(tempfile.mkdtemp(prefix="tensorops-bench-", dir=above)), round(processors * PERIOD)
    try:
        if (group / "cpu.cfs_quota_us").exists():  # version 1
            _write(group / "cpu.cfs_period_us", str(PERIOD))
            _write(group / "cpu.cfs_quota_us", str(quota))
            return group
        if not (group / "cpu.max").exists():  # the group above must hand the controller on
            _write(above / "cgroup.subtree_control", "+cpu")
        _write(group / "cpu.max", f"{quota} {PERIOD}")
    except OSError:
        _remove(group)
        raise
    return group


def _write(path: Path, text: str) -> None:
    with path.open("r+") as file:  # which does not create one
        file.write(text)


def _move(group: Path, pid: int) -> None:
    try:
        _write(group / "cgroup.procs", str(pid))
    except OSError as error:
        raise CannotMeasureError(f"no quota of processor time can be set: {error}") from None


def _remove(group: Path) -> None:
    with contextlib.suppress(OSError):
        group.rmdir()
