"""A guard of commands that run code of plugins, which may crash or hang.

After a crash or at a time limit, stderr shows the Python lines that all threads were executing, and
the step in which the process ended. A second process prints the step, because the first cannot.
"""

from __future__ import annotations

import faulthandler
import subprocess
import sys
from typing import Self

__all__ = ["Watch"]

STDERR = 2  # the file descriptor; `sys.stderr` may be an object without one
PROGRAM = """
import signal, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)
step = ""
for line in sys.stdin:
    step = line.strip()
if step:
    sys.stderr.write(f"error: the process ended during {step}\\n")
"""


class Watch:
    """Guards the steps in a `with` block: call it with a description at the start of each.

    seconds: the time limit of a step. At the limit, the process ends with status 1.
    """

    def __init__(self, seconds: int) -> None:
        self._seconds = seconds
        self._was_enabled = faulthandler.is_enabled()

    def __enter__(self) -> Self:
        if not self._was_enabled:
            faulthandler.enable(STDERR)
        command = [sys.executable, "-I", "-S", "-c", PROGRAM]
        self._witness = subprocess.Popen(command, stdin=subprocess.PIPE, text=True)  # noqa: S603 - this Python
        return self

    def __call__(self, step: str) -> None:
        """Begin a step and restart the time limit."""
        faulthandler.dump_traceback_later(self._seconds, exit=True, file=STDERR)
        self._tell(step)

    def _tell(self, line: str) -> None:
        assert self._witness.stdin is not None
        self._witness.stdin.write(f"{line}\n")
        self._witness.stdin.flush()

    def __exit__(self, *error: object) -> None:
        faulthandler.cancel_dump_traceback_later()
        if not self._was_enabled:
            faulthandler.disable()
        self._tell("")
        self._witness.communicate()
