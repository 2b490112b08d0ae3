"""Makes Intel's OpenCL runtime for CPUs visible, so that tests see two vendors on any machine.

`pip install intel-opencl-rt` brings the library, but the loader is told nothing of it. PoCL needs
no help: the loader in pyopencl's wheel adds it to whatever it finds.
"""

import atexit
import os
import shutil
import sys
import tempfile
from pathlib import Path


def reveal_opencl_runtimes() -> None:
    """Point the OpenCL loader to all runtimes; call it before pyopencl is imported.

    A user's own `OCL_ICD_VENDORS` is left alone.
    """
    intel = Path(sys.prefix) / "lib" / "libintelocl.so"
    if "OCL_ICD_VENDORS" in os.environ or not intel.exists():
        return
    folder = Path(tempfile.mkdtemp(prefix="opencl-vendors-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    (folder / "intel-opencl-rt.icd").write_text(f"{intel}\n")
    for driver in Path("/etc/OpenCL/vendors").glob("*.icd"):
        shutil.copy(driver, folder)
    os.environ["OCL_ICD_VENDORS"] = str(folder)
