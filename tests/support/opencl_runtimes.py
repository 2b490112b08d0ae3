"""Registers Intel's OpenCL runtime for CPUs, so that each machine has devices of two vendors.

`pip install intel-opencl-rt` installs the library but does not register it with the OpenCL loader.
PoCL needs no registration, because the loader in pyopencl's wheel adds it. As a program, this file
registers the runtime and runs the command in its arguments.
"""

import atexit
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path


def reveal_opencl_runtimes() -> None:
    """Point the OpenCL loader to all runtimes. Call this before pyopencl is imported.

    If the user has set `OCL_ICD_VENDORS`, nothing changes.
    """
    intel = Path(sys.prefix) / "lib" / "libintelocl.so"
    if "OCL_ICD_VENDORS" in os.environ or not intel.exists():
        return
    folder = Path(tempfile.mkdtemp(prefix="opencl-vendors-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    if re.search(r"\s", str(intel)):
        intel = _outside(intel, folder / "intel")
    (folder / "intel-opencl-rt.icd").write_text(f"{intel}\n")
    for driver in Path("/etc/OpenCL/vendors").glob("*.icd"):
        shutil.copy(driver, folder)
    os.environ["OCL_ICD_VENDORS"] = str(folder)


def _outside(library: Path, folder: Path) -> Path:
    """Fill `folder` with the files of the library's folder. Return the library's new path.

    The runtime reads its own path from /proc/self/maps and truncates it at white space. That file
    lists real paths, so the library itself must not be a symbolic link.
    """
    folder.mkdir()
    for path in library.parent.iterdir():
        if path.name != library.name:
            (folder / path.name).symlink_to(path)
    try:
        os.link(library.resolve(), folder / library.name)
    except OSError:  # hard links need the same file system
        shutil.copy(library, folder)
    return folder / library.name


if __name__ == "__main__":
    reveal_opencl_runtimes()
    sys.exit(subprocess.run(sys.argv[1:], check=False).returncode)
