"""The implementations that repeat the calls of a program.

"reference" means the backend that defines correct results. Patterns such as "onednn:*" mean
implementations on the engine of the call, or else on the CPU. The name of an engine means the
implementation that is selected on this engine.
"""

from __future__ import annotations

import fnmatch
import functools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from dnncore.attributes import Attributes
from dnncore.crosschecking.call import Call, Copies, NotComparable
from dnncore.crosschecking.hidden import Hidden, has_private_workspace, is_hidden
from dnncore.crosschecking.strays import pack
from dnncore.engines.engine import Engine
from dnncore.engines.memory import Memory
from dnncore.errors import BackendNotFound, DescriptorError, DnnError, NoImplementation
from dnncore.ops import Operation
from dnncore.selection.plugins import engine as open_engine
from dnncore.selection.plugins import registry
from dnncore.selection.primitive_desc import PrimitiveDesc, primitive_descs
from dnncore.selection.reorder import reorder
from dnncore.tensors.memory_desc import MemoryDesc

__all__ = ["REFERENCE", "Choice", "Repetition", "choice_of"]

Array = np.ndarray[Any, Any]

REFERENCE = "reference"
"""The word for the backend that defines correct results."""


class Choice:
    """The implementations that a name selects.

    name: "reference", a pattern of names of implementations, or the name of an engine.
    """

    def __init__(self, name: str, patterns: str | None, engine: Engine | None) -> None:
        self.name = name
        self._patterns = patterns
        self._engine = engine

    @property
    def is_reference(self) -> bool:
        """Whether only the reference repeats the calls."""
        return self.name == REFERENCE

    def descriptor(self, pd: PrimitiveDesc) -> PrimitiveDesc:
        """Return the best other implementation of this problem. Raises `NotComparable`."""
        hint = None if pd.hint is None else self.descriptor(pd.hint)
        attr = replace(pd.attr, scratchpad="library", scratchpad_limit=None)
        refusals: dict[str, None] = {}
        is_alone = False
        for op in _in_other_formats(pd.op):
            for engine in self._engines(pd):
                for found in self._accepting(op, engine, attr, hint, refusals):
                    if found.impl_name != pd.impl_name or found.engine is not pd.engine:
                        return found
                    is_alone = True
        reasons = f"there is none but {pd.impl_name}" if is_alone else "; ".join(refusals)
        raise NotComparable(f"no other implementation by {self.name}: {reasons}")

    def _engines(self, pd: PrimitiveDesc) -> list[Engine]:
        if self._engine is not None:
            return [self._engine]
        return list(dict.fromkeys([pd.engine, open_engine("cpu")]))

    def _accepting(
        self,
        op: Operation,
        engine: Engine,
        attr: Attributes,
        hint: PrimitiveDesc | None,
        refusals: dict[str, None],
    ) -> Iterator[PrimitiveDesc]:
        """Yield the implementations that accept, best first. Collect the reasons of the others."""
        wishes: dict[str, Any] = {"impl": self._patterns, "skip_impl": "", "host_fallback": False}
        found = False
        try:
            for pd in primitive_descs(op, engine, attr, hint=hint, **wishes):
                found = True
                yield pd
            if not found:
                PrimitiveDesc(op, engine, attr, hint=hint, **wishes)
        except NoImplementation as error:
            reasons = [str(r) for r in error.refusals if r.kind != "filter"]
            refusals.update(dict.fromkeys(reasons or ["it has no such operation"]))
        except DescriptorError as error:  # the hint does not fit
            refusals[str(error)] = None


def choice_of(name: object) -> Choice:
    """Return the choice that a name selects.

    Raises `DescriptorError` for a name without a meaning, and `BackendNotFound` if there is no
    reference.
    """
    if not isinstance(name, str) or not name.strip():
        raise DescriptorError(
            f"crosscheck: expected {_MEANINGS}; got {name!r}; pass a text such as 'reference'"
        )
    name = name.strip()
    registry.discover()
    reference = registry.with_role("reference")
    if reference is None:
        raise BackendNotFound(
            "crosscheck: the reference bounds the errors, but there is no backend with the role"
            " 'reference'; `dnncore backends` lists the reasons"
        )
    if name == REFERENCE:
        return Choice(name, f"{reference.name}:*", None)
    reason = ""
    if "*" not in name and "," not in name:
        try:
            return Choice(name, "", open_engine(name))
        except DnnError as error:
            reason = f"; as an engine: {error}"
    patterns = [part.strip() if ":" in part else f"{part.strip()}:*" for part in name.split(",")]
    if all(map(_matches_a_backend, patterns)):
        return Choice(name, ",".join(patterns), None)
    backends = ", ".join(f"{backend}:*" for backend in sorted(registry.loaded))
    raise DescriptorError(
        f"crosscheck: expected {_MEANINGS}; got {name!r}; there are the patterns {backends}{reason}"
    )


_MEANINGS = "'reference', a pattern of names of implementations, or the name of an engine"


def _matches_a_backend(pattern: str) -> bool:
    head, _, rest = pattern.partition(":")
    if rest.isdecimal():  # the index of a device that does not exist
        return False
    return any(fnmatch.fnmatchcase(backend, head) for backend in registry.loaded)


def _in_other_formats(op: Operation) -> Iterator[Operation]:
    """Yield the operation in its own, in row-major, and in the implementation's formats."""
    if all(desc.format_kind == "blocked" for _, desc in op.tensors()):
        yield op
    for change in (_plain, _any):
        try:
            yield op.with_each(change)
        except DescriptorError:  # the operation needs a concrete format
            continue


def _plain(desc: MemoryDesc) -> MemoryDesc:
    return desc.with_format(None)


def _any(desc: MemoryDesc) -> MemoryDesc:
    return desc.with_format("any")


class Repetition:
    """One problem, repeated by an implementation on separate memories.

    workspaces: private workspaces of the implementation, by the program's workspace.
    alias: the input and the output in one memory, or None.
    """

    def __init__(
        self, pd: PrimitiveDesc, workspaces: Hidden, alias: tuple[str, str] | None = None
    ) -> None:
        self.pd = pd
        self._workspaces = workspaces
        self._stream = pd.engine.stream()
        self._memories = {
            argument.name: Memory(desc, pd.src_engine if argument.name == "src" else pd.engine)
            for argument, desc in pd.arguments
        }
        if pd.scratchpad_desc is not None:
            self._memories["scratchpad"] = Memory(pd.scratchpad_desc, pd.engine)
        if alias is not None and pd.descs[alias[0]] == pd.descs[alias[1]]:
            self._memories[alias[1]] = self._memories[alias[0]]

    def outputs(
        self, call: Call, workspace_bytes: Array | None = None, *, strays: bool = False
    ) -> dict[str, Array]:
        """Repeat a call on its inputs. Return the outputs that every implementation can read.

        workspace_bytes: the bytes of the program's workspace, if the workspace of either
            implementation is private.
        strays: whether to add to `call.strays` the bytes that this launch changes although it must
            not.
        """
        memories = dict(self._memories)
        for name, values in call.inputs.items():
            if name in memories and not self._is_private(name):
                memories[name] = self._filled(name, values)
        if self._is_private("workspace"):
            memories["workspace"] = self._private_workspace(call, workspace_bytes)
        copies = self._copies if strays else None
        own = Call(call.number, self.pd, memories)
        if copies:
            copies.take_before(own, self._stream)
        self.pd.primitive().bind(**memories).launch_unobserved(self._stream).wait()
        if copies:
            copies.take_outputs(own, self._stream)
            copies.take_strays(own, self._stream)
            call.strays += own.strays
        return {
            argument.name: np.array(memories[argument.name].numpy(self._stream))
            for argument, _ in self.pd.arguments
            if argument.direction == "out" and not is_hidden(self.pd, argument.name)
        }

    @functools.cached_property
    def _copies(self) -> Copies:
        return Copies(self.pd)

    def _is_private(self, name: str) -> bool:
        return name == "workspace" and has_private_workspace(self.pd)

    def _filled(self, name: str, values: Array) -> Memory:
        memory = self._memories[name]
        desc = memory.desc
        values = values.astype(desc.dtype, copy=False)
        if desc.format_kind == "opaque":
            plain = Memory.from_numpy(np.array(values), desc.with_format(None), memory.engine)
            return reorder(plain, desc)
        with memory.map(None, "w") as buffer:
            pack(desc, values, buffer)
        return memory

    def _private_workspace(self, call: Call, content: Array | None) -> Memory:
        """Return a new workspace of a forward call, or that of a gradient's forward call."""
        theirs, desc = call.memories.get("workspace"), self.pd.workspace_desc
        assert desc is not None
        if self.pd.op.forward_op is None:
            own = Memory(desc, self.pd.engine)
            if theirs is not None and content is not None:
                self._workspaces.keep(theirs, content, own)
            return own
        found: Memory | None = None
        if theirs is not None and content is not None:
            found = self._workspaces.find(theirs, content)
        if found is None:
            raise NotComparable(
                f"the workspace of {self.pd.impl_name} is private, and its forward call was not"
                " repeated"
            )
        return found
