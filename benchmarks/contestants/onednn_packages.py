"""The packages of oneDNN. Each is in its own folder, and a process loads only one of them."""

from __future__ import annotations

import importlib.metadata
import os
import sys
from dataclasses import dataclass
from pathlib import Path

__all__ = ["NEWEST", "OPENMP", "Package", "newest_environment"]


@dataclass(frozen=True)
class Package:
    """A package of oneDNN.

    name, version: the package's name and version on PyPI.
    library_version: the version of the library in the package.
    released: the newest date of files in the wheel.
    prefix: the folder of the installation, relative to the environment's folder; "" for the
        environment itself.
    threads: the threading runtime.
    how: the command that installs the package.
    """

    name: str
    version: str
    library_version: str
    released: str
    prefix: str
    threads: str
    how: str

    def __str__(self) -> str:
        """The versions, the release date and the threading runtime, as text."""
        package = f"{self.name} {self.version}, wheel of {self.released}"
        return f"oneDNN {self.library_version} ({package}; threads: {self.threads})"

    @property
    def is_installed(self) -> bool:
        """Whether the package's library is installed."""
        try:
            return self.library.exists()
        except ModuleNotFoundError:
            return False

    @property
    def folder(self) -> Path:
        """The folder of the installation."""
        return Path(sys.prefix) / self.prefix

    @property
    def library(self) -> Path:
        """The path of the library. Raises `ModuleNotFoundError` if it is not installed."""
        if not self.prefix:
            given = os.environ.get("DNNCORE_ONEDNN_LIBRARY")
            return Path(given) if given else self._in_environment()
        path = self.folder / "lib" / "libdnnl.so.3"
        if not path.exists():
            raise self._missing()
        return path

    def _in_environment(self) -> Path:
        try:
            files = importlib.metadata.files(self.name) or []
        except importlib.metadata.PackageNotFoundError:
            raise self._missing() from None
        return Path(str(next(file.locate() for file in files if file.name == "libdnnl.so")))

    def _missing(self) -> ModuleNotFoundError:
        return ModuleNotFoundError(f"{self.name} {self.version} is not installed: {self.how}")


OPENMP = Package(
    "onednn-cpu-gomp", "2023.2.0", "3.2.0", "2023-07-08", "", "GNU OpenMP",
    'pip install "dnncore[peers]"',
)  # fmt: skip
NEWEST = Package(
    "onednn", "2026.1.0", "3.13.2", "2026-10-08", "onednn-2026.1.0", "SYCL and TBB",
    "make .venv/onednn-2026.1.0",
)  # fmt: skip


def newest_environment() -> dict[str, str]:
    """Environment variables with which a process can load the newest oneDNN and its dependencies.

    This oneDNN computes on SYCL's CPU device, which Intel's OpenCL runtime provides.
    """
    libraries = NEWEST.folder / "lib"
    known = os.environ.get("LD_LIBRARY_PATH")
    return {
        "LD_LIBRARY_PATH": os.pathsep.join(filter(None, [str(libraries), known])),
        "OCL_ICD_FILENAMES": str(libraries / "libintelocl.so"),
        "ONEAPI_DEVICE_SELECTOR": "opencl:cpu",
    }
