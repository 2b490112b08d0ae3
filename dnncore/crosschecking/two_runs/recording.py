"""Records the calls of a run: a line about each, and files with its inputs and outputs."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dnncore.crosschecking.call import Call, Copies
from dnncore.crosschecking.call_observer import CallObserver
from dnncore.crosschecking.judgement import Claims
from dnncore.crosschecking.saved import read_arrays, write_arrays
from dnncore.problem.attributes import write as attributes_texts
from dnncore.selection.primitive_desc import PrimitiveDesc

__all__ = ["LIST", "CallRecord", "Recorder", "Recording"]

Array = np.ndarray[Any, Any]
LIST = "calls.json"


@dataclass
class CallRecord:
    """A call of a run.

    signature: operation, dims, types and post-ops. Calls with equal signatures match.
    reason: why there are no values of the call, or "".
    """

    number: int
    signature: str
    kind: str
    implementation: str
    engine: str
    exact: bool
    error_factor: float
    reason: str = ""

    @classmethod
    def of(cls, number: int, pd: PrimitiveDesc) -> CallRecord:
        """Return the record of a call by this implementation."""
        claims = Claims.of(pd)
        return cls(
            number, signature(pd), pd.op.KIND, pd.impl_name, pd.engine.name, claims.exact,
            claims.error_factor,
        )  # fmt: skip

    @property
    def claims(self) -> Claims:
        """The claims of the implementation about its errors."""
        return Claims(self.exact, self.error_factor)


@dataclass
class Recording:
    """The calls of a run in a folder. `read` reads the calls of a run that has ended."""

    folder: Path
    calls: list[CallRecord]

    @classmethod
    def read(cls, folder: Path) -> Recording:
        """Read the list of calls. Raises `OSError` if the run wrote none."""
        rows = json.loads((folder / LIST).read_text())
        return cls(folder, [CallRecord(**row) for row in rows])

    def write(self) -> None:
        """Write the list of calls."""
        (self.folder / LIST).write_text(json.dumps([asdict(call) for call in self.calls]))

    def values(self, number: int) -> tuple[dict[str, Array], dict[str, Array]]:
        """The inputs and outputs of a call."""
        _, arrays = read_arrays(self.path(number))
        parts: tuple[dict[str, Array], dict[str, Array]] = ({}, {})
        for name, values in arrays.items():
            way, _, argument = name.partition(" ")
            parts[way == "out"][argument] = values
        return parts

    def path(self, number: int) -> Path:
        """The file of a call."""
        return self.folder / f"{number}.npz"


class Recorder(CallObserver):
    """Writes the values of all calls of this process to a recording.

    most_bytes: the limit for the bytes of all values. The values of later calls are not recorded.
    """

    def __init__(self, recording: Recording, most_bytes: int) -> None:
        super().__init__()
        self.recording = recording
        self.descriptors: list[PrimitiveDesc] = []
        self.aliases: dict[int, tuple[str, str] | None] = {}
        self._left = most_bytes
        self._process = os.getpid()

    def begin(self, pd: PrimitiveDesc) -> int | None:
        """Add the call to the list. Calls of forked children are left out."""
        if os.getpid() != self._process:
            return None
        number = len(self.descriptors) + 1
        self.descriptors.append(pd)
        self.recording.calls.append(CallRecord.of(number, pd))
        return number

    def wants(self, call: Call) -> bool:
        """Whether the limit allows the values to be written."""
        size = sum(desc.nbytes for desc in call.pd.descs.values())
        self._left -= size
        if self._left < 0:
            self.left_out(call, "the limit of bytes is reached")
        return self._left >= 0

    def finished(self, call: Call, copies: Copies) -> Callable[[], None] | None:
        """Write the values."""
        if self._left < 0:
            return None
        arrays = {f"in {name}": values for name, values in call.inputs.items()}
        arrays |= {f"out {name}": values for name, values in call.outputs.items()}
        write_arrays(self.recording.path(call.number), {}, arrays, compressed=False)
        self.aliases[call.number] = call.alias
        return None

    def left_out(self, call: Call, reason: str) -> None:
        """Note the reason."""
        self.recording.calls[call.number - 1].reason = reason


@functools.lru_cache(maxsize=4096)
def signature(pd: PrimitiveDesc) -> str:
    """The operation, its dims, data types and post-ops, without formats."""
    tensors = " ".join(
        f"{argument.name}:{desc.data_type}:{'x'.join(map(str, desc.dims))}"
        for argument, desc in pd.op.tensors()
    )
    return f"{pd.op.KIND} {tensors} {attributes_texts(pd.attr)['attr-post-ops']}".strip()
