"""A copy of the source, to which mutants are applied, and the processes that test the copy."""

from __future__ import annotations

import compileall
import contextlib
import json
import os
import py_compile
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from fnmatch import fnmatch
from pathlib import Path

from mutants.scope import ON_INTEL, Stratum
from mutants.sites import Site

__all__ = ["Copy", "Stopped", "stop"]

FOLDERS = ("dnncore", "backends", "tests", "mutants", "benchmarks", "examples")
COMPILED = ("dnncore", "backends", "tests/support")
MEMORY = 16 << 30  # limit of address space in bytes, because a mutant may allocate without end
COMPILERS = 60.0  # CPU seconds to start a process and to compile the kernels of its tests
WAITS = 5  # a process hangs if it takes this many seconds per permitted CPU second; allows for load


class Stopped(Exception):
    """`stop` was called. The status of a process then says nothing about its mutant."""


class Copy:
    """A copy of the source below `folder`, with its own stores of compiled code."""

    def __init__(self, root: Path, folder: Path) -> None:
        self.root = folder / "source"
        self.folder = folder
        shutil.rmtree(self.root, ignore_errors=True)
        for name in FOLDERS:
            shutil.copytree(
                root / name, self.root / name, ignore=shutil.ignore_patterns("__pycache__")
            )
        shutil.copy(root / "pyproject.toml", self.root)
        # Bytecode is checked by hash: a mutant and its bytecode may have the same time stamp.
        mode = py_compile.PycInvalidationMode.CHECKED_HASH
        for name in COMPILED:
            compileall.compile_dir(self.root / name, quiet=2, invalidation_mode=mode)

    @contextlib.contextmanager
    def mutated(self, site: Site) -> Iterator[None]:
        """Apply a mutant within the block."""
        path = self.root / site.path
        text = path.read_text(encoding="utf-8")
        path.write_text(site.apply(text), encoding="utf-8")
        try:
            yield
        finally:
            path.write_text(text, encoding="utf-8")

    def fails(self, tests: Sequence[str], seconds: float, stratum: Stratum) -> str:
        """Run tests in this order until one fails. Returns the reason, or "" if all pass."""
        with tempfile.TemporaryDirectory(dir=self.folder) as store:
            listed = Path(store) / "tests.json"
            listed.write_text(json.dumps(list(tests)))
            files = dict.fromkeys(test.partition("::")[0] for test in tests)
            options = ("-x", f"--mutants-tests={listed}", f"--mutants-target={stratum.target}")
            peaks = self.folder / "cache" / "peaks"  # reused, so that each process need not measure
            if peaks.exists():
                shutil.copytree(peaks, Path(store) / "peaks")
            limit = COMPILERS + 3 * seconds
            status, output = self.pytest((*options, *files), store, limit, stratum)
        if status in (None, -signal.SIGXCPU):
            return "timeout"
        if status == 0:
            return ""
        if status == 5 or "no tests ran" in output:
            raise RuntimeError(f"the tests were not found: {tests[:3]}\n{output}")
        failed = [line for line in output.splitlines() if line.startswith(("FAILED", "ERROR"))]
        return failed[0] if failed else f"exit status {status}"

    def pytest(
        self, options: Sequence[str], store: str, limit: float, stratum: Stratum
    ) -> tuple[int | None, str]:
        """Run pytest in the copy for at most `limit` CPU seconds. Returns exit status and output.

        The status is None if the process hangs without using the CPU.

        Raises `Stopped` if `stop` was called.
        """
        if _stopping.is_set():
            raise Stopped
        paths = [self.root, *sorted((self.root / "backends").iterdir())]
        inherited = [path for path in (os.environ.get("PYTHONPATH"),) if path]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(map(str, (*paths, *inherited))),
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTEST_ADDOPTS": "",
            "DNNCORE_BACKENDS": stratum.backends,
            "DNNCORE_CACHE_DIR": store,
            "OCL_ICD_VENDORS": str(
                self.folder / "icd"
            ),  # an empty folder: only PoCL, which needs no file there
            "POCL_CACHE_DIR": str(self.folder / "pocl"),  # keys are texts of kernels
        }
        if any(fnmatch(option, ON_INTEL) for option in options):
            del environment["OCL_ICD_VENDORS"]  # tests/conftest.py sets it
        for name in ("icd", "pocl"):
            (self.folder / name).mkdir(exist_ok=True)
        command = [
            sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p",
            "mutants.tracing", "--tb=no", "-rfE", "--dnncore-timeout=60", *options,
        ]  # fmt: skip
        process = subprocess.Popen(
            command, cwd=self.root, env=environment, text=True, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        _running.add(process)
        if _stopping.is_set():  # `stop` may have been called since the first test
            _kill(process)
        try:
            resource.prlimit(process.pid, resource.RLIMIT_AS, (MEMORY, MEMORY))
            resource.prlimit(process.pid, resource.RLIMIT_CPU, (int(limit), int(limit) + 5))
            output, _ = process.communicate(timeout=WAITS * limit)
        except subprocess.TimeoutExpired:
            _kill(process)
            process.communicate()
            return None, ""
        finally:
            _running.discard(process)
        if _stopping.is_set():
            raise Stopped
        return process.returncode, output


_running: set[subprocess.Popen[str]] = set()
_stopping = threading.Event()


def stop() -> None:
    """End all processes and prevent new ones."""
    _stopping.set()
    for process in tuple(_running):
        _kill(process)


def _kill(process: subprocess.Popen[str]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
