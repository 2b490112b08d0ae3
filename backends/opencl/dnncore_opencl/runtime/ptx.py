"""Instructions that NVIDIA's OpenCL C compiler refuses because its PTX target lacks them.

A kernel contains them in inline PTX, as comments that begin with `HIDDEN`. The compiler's result is
PTX, which keeps the comments. `uncovered` turns them into instructions and changes the target.
"""

from __future__ import annotations

import re

from dnncore.backend import BuildError

HIDDEN = "//@@"
TARGET = re.compile(r"^(\s*\.target\s+)(sm_\d+)\w?\b", re.MULTILINE)


def uncovered(binary: bytes, target: str) -> bytes:
    """Return PTX for a target such as `sm_90a`, with the hidden instructions uncovered.

    Raises `BuildError` if the binary is not PTX for the same processor, or has no hidden
    instruction.
    """
    try:
        text = binary.rstrip(b"\0").decode()
    except UnicodeDecodeError:
        raise BuildError("the compiler's result is no PTX") from None
    found = TARGET.findall(text)
    if len(found) != 1 or not re.fullmatch(f"{found[0][1]}[a-z]?", target):
        got = ", ".join(name for _, name in found) or "none"
        raise BuildError(f"PTX for {target} comes from PTX for its processor; got {got}")
    if HIDDEN not in text:
        raise BuildError(f"the compiler's result has no comments {HIDDEN}")
    return TARGET.sub(rf"\g<1>{target}", text).replace(HIDDEN, "").encode()
