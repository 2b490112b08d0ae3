"""Notes: standard words that describe how an implementation computes.

An implementation states notes in its acceptance. A pattern `note:WORD` in `impl`, `skip_impl`,
`DNNCORE_IMPL` and `DNNCORE_SKIP_IMPL` selects implementations by their notes.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

__all__ = ["NOTES", "PREFIX"]

PREFIX = "note:"

NOTES: Mapping[str, str] = MappingProxyType({
    "compiles": "building the primitive may compile code, which takes milliseconds to minutes",
    "copies": "a run copies tensors into another layout first, or copies its result out of one",
    "host": "a run copies tensors to the host and back, and waits for it",
    "library": "a library outside of the backend computes, such as a BLAS or oneDNN",
    "matrix_unit": "it uses units for small matrix products, such as tensor cores or AMX",
    "reduced_precision": "it rounds factors to a type with fewer bits than the tensors' type",
})  # fmt: skip
"""The notes and their meanings."""
