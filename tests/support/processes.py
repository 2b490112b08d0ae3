"""Runs code that may hang or abort in a separate process."""

import os
import signal
import subprocess
import sys
import textwrap

# Since Python 3.12, a fork of a process with several threads causes a warning.
NO_WARNING = ("-W", "ignore:This process:DeprecationWarning")


def run(code, timeout=100, options=(), **environment):
    """Run code. Returns the lines that it printed. It must end in time, with status 0.

    A hanging process is aborted. Then, and after a crash, the message contains the stacks of all
    threads of the process.
    """
    process = subprocess.Popen(
        [sys.executable, "-X", "faulthandler", *NO_WARNING, *options, "-c", textwrap.dedent(code)],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        out, errors = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGABRT)
        try:
            out, errors = process.communicate(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            out, errors = process.communicate()
        errors = f"it hung for {timeout} s\n{errors}"
    assert process.returncode == 0, f"status {process.returncode}\n{out}\n{errors}"
    assert not errors, errors
    return out.split("\n")[:-1]
