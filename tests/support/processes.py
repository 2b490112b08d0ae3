"""Runs code that may hang or abort, in a process of its own."""

import os
import signal
import subprocess
import sys
import textwrap

# From Python 3.12 on, a fork of a process with several threads is a warning.
NO_WARNING = ("-W", "ignore:This process:DeprecationWarning")


def run(code, timeout=100, options=(), **environment):
    """Run code; return the lines that it printed. It must end in time, with status 0.

    A process that hangs is aborted. Then, and after a crash, the message has the stacks of all its
    threads.
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
