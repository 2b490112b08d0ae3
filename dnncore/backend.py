"""The plugin contract: all that a backend imports from dnncore.

A plugin is a module with one hook. dnncore finds it through the entry-point group
`dnncore.backends`. The hook returns a backend:

    from dnncore.backend import Backend, hookimpl

    @hookimpl
    def dnncore_backends():
        return Backend("mine", "1.1",
                       engines={"mine": "my_package.engine:MyEngine"},
                       implementations={("mine", EltwiseForward): "my_package.eltwise:TABLE"})

A backend may provide engines, implementations for any engine kind, or both. The strings name
objects that are imported on first use, so the module itself imports little. A TABLE is a sequence
of `Implementation`s, best first by convention. Their estimates decide the ranking.

Versions
--------
A backend states as a literal the version of the contract for which it was written. A core of
version 1.4 runs backends of the versions 1.0 to 1.4, and refuses all others with a `PluginError`.

A backend may rely on this: within a major version, no name of this module and no parameter is
removed, and every new parameter or method has a default that means the old behaviour. The core
calls a backend only with the methods and parameters of its version. A new rule applies to backends
of its version or newer, but the conformance kit checks all rules. Begin the names of your own
attributes of engines, streams and events with `_`, so that they never equal a later name of the
contract.

A core of version 2 refuses backends of version 1, because a new major version exists only to break
a rule on which they rely. One distribution can serve both: its hook returns the `Backend` that
suits `API_VERSION`. Names that a major version removes are documented as deprecated in the
preceding minor version.

1.0  The first version. The number 1 as `api_version` means 1.0.
1.1  Versions with a minor number. `Engine.is_lost`: a lost engine can be opened again by its name.
     `free` is never called during a garbage collection. The failure of a command is raised
     once by its stream and does not fail later commands. All streams of an engine share the clock
     of their events. Standard keys of `Device.limits`. Rules for engines in a forked child. The
     docstrings of `Engine`, `Stream` and `Event` state the rules. Notes, details and knobs of an
     acceptance. Objects of the runtime become memories (`Engine.wrap`, `place`, `is_read_only`),
     buffers pass by DLPack (`dlpack_device`, `to_dlpack`, `from_dlpack`) and are mapped (`map`).
     `Backend.array_kinds`.
1.2  `Composition` offers an operation as steps of other operations; `deconvolutions` and
     `depthwise_fusions`. The words "depthwise" and "rnn_qparams" of attributes;
     `Attributes.stored`, `RNNQparams.of`.

Formats of a backend's own
--------------------------
An implementation may require a layout that only its backend knows, such as packed weights. The name
of an opaque format begins with that of the backend, and its size is given in bytes:

    packed = MemoryDesc(op.weights.dims, "f32", "mine:panels:16", nbytes=65536)
    op = op.resolve_any(weights=packed, dst=plain)  # only where op.weights.is_any

The user allocates such a memory and fills it by a reorder from a plain format. The backend computes
this reorder: its table for `Reorder` contains an implementation that accepts `op.dst.tag` of this
form. All other implementations refuse it. The name must contain every parameter of the layout, so
that equal names mean equal layouts. A launch receives the memory as `memory.buffer`, without an
offset.

Knobs
-----
An implementation may let programs choose its parameters, such as the size of a work-group. It
declares `Knob`s in its acceptance, with a function `tune` that returns the acceptance for other
values:

    def accept(self, op, attr, engine, hint):
        return self.accepted(op, group=64)

    def accepted(self, op, group):
        sizes = Knob("group", group, (32, 64, 128), "work-items of a work-group")
        tune = functools.partial(self.accepted, op)
        return Accepted(op, build=..., efficiency=0.5, knobs=(sizes,), tune=lambda v: tune(**v))

The core checks the names and values of a request, and calls `tune` with all of the knobs.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, TypeAlias, TypeVar

import numpy as np
import pluggy

from dnncore.attributes import Attributes
from dnncore.cache import count as cache_count
from dnncore.engines.array_kinds import ArrayKind, DeviceArrays, HostArrays
from dnncore.engines.device import Device
from dnncore.engines.engine import Buffer, Engine, HostEngine, Wrapped, check_size
from dnncore.engines.measured import figures as measured_figures
from dnncore.engines.memory import Memory
from dnncore.engines.peaks import Peaks
from dnncore.engines.processors import available_processors
from dnncore.engines.scratchpads import Scratchpad
from dnncore.engines.stream import COMPLETED, Event, HostStream, Order, Stream, TimedEvent
from dnncore.errors import (
    BuildError,
    DescriptorError,
    DnnError,
    EngineUnavailable,
    ExecutionError,
    PluginError,
)
from dnncore.forking import INNERMOST, hold_at_fork
from dnncore.interrupts import holding, in_main_thread, locked, rest, uninterrupted
from dnncore.knobs import Knob, KnobValue
from dnncore.notes import NOTES
from dnncore.observers import remark
from dnncore.ops import *  # noqa: F403 - operations are part of the contract
from dnncore.ops import Operation, Reorder
from dnncore.ops import __all__ as _operations
from dnncore.ops.attention import Attention
from dnncore.ops.batch_normalization import BatchNormalization
from dnncore.ops.convolution import Convolution
from dnncore.ops.deconvolution import Deconvolution
from dnncore.ops.eltwise import Eltwise
from dnncore.ops.group_normalization import GroupNormalization
from dnncore.ops.inner_product import InnerProduct
from dnncore.ops.layer_normalization import LayerNormalization
from dnncore.ops.lrn import LRN
from dnncore.ops.normalization import Normalization
from dnncore.ops.pooling import Pooling
from dnncore.ops.prelu import PReLU
from dnncore.ops.resampling import Resampling
from dnncore.ops.rnn import RNN
from dnncore.ops.shuffle import Shuffle
from dnncore.ops.softmax import Softmax
from dnncore.ops.sources import Sources
from dnncore.post_op import PostOp
from dnncore.quantization import Dropout, Quantization, Scales, ZeroPoints
from dnncore.rnn_quantization import RNNDataQparams, RNNQparams, RNNWeightsQparams
from dnncore.store import DiskStore
from dnncore.tensors.datatypes import data_type, numpy_dtype
from dnncore.tensors.datatypes import from_numpy_dtype as data_type_of
from dnncore.tensors.memory_desc import MemoryDesc

if TYPE_CHECKING:
    from dnncore.composition.composition import Composition
    from dnncore.composition.deconvolution import deconvolutions
    from dnncore.composition.depthwise import depthwise_fusions
    from dnncore.composition.steps import CannotCompose, Room, Steps
    from dnncore.selection.primitive_desc import PrimitiveDesc

API_VERSION = "1.2"
"""The version of this contract, "major.minor"."""

hookimpl = pluggy.HookimplMarker("dnncore")

OLD_INTEGERS = ("s32", "s8", "u8")
"""The integer types that reorders supported in version 1.0."""

RefusalKind: TypeAlias = Literal[
    "type", "shape", "format", "algorithm", "attribute", "device", "filter", "resources", "failed"
]


@dataclass(frozen=True)
class Backend:
    """The result of the hook `dnncore_backends`, which may also return a list of backends.

    role: "reference" for the backend that defines correct results. dnncore warns if it selects this
        backend without the user's request.
    engines: engine kind -> "module:EngineClass".
    implementations: (engine kind, operation class) -> "module:TABLE".
    array_kinds: the class of another library's arrays, "module:Class", which is not imported ->
        "module:OBJECT" of an `ArrayKind`, so that one-line functions accept and return such arrays.
    """

    name: str
    api_version: str | int
    role: str | None = None
    engines: Mapping[str, str] = field(default_factory=dict)
    implementations: Mapping[tuple[str, type[Operation]], str] = field(default_factory=dict)
    array_kinds: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Refused:
    """The refusal of an implementation: the kind of reason, and the reason as text with numbers."""

    kind: RefusalKind
    reason: str


@dataclass(frozen=True)
class Refusal:
    """A refusal and the name of the implementation that refused."""

    impl_name: str
    kind: RefusalKind
    reason: str

    def __str__(self) -> str:
        return f"{self.impl_name}: {self.kind}: {self.reason}"


@dataclass(frozen=True)
class Accepted:
    """The answer of an implementation that can compute the operation.

    An acceptance that breaks these rules counts as a failure of the implementation.

    op: the requested operation with every format `any` resolved.
    build: returns the executable. It may take long and may raise. It is called once per cached
        primitive. Requests with equal `op` of their acceptances, attributes, hints and knobs share
        an executable, whether formats were `any` in the request or not.
    efficiency: the seconds of a perfect implementation divided by the seconds of this
        implementation, above 0. It may exceed 1. Give either `efficiency` or `seconds`, and not
        both.
    seconds: the estimated seconds of an execution, above 0.
    scratchpad_bytes: bytes of scratchpad that an execution needs, at least 0.
    workspace: the descriptor of the workspace if it differs from the public one,
        `op.workspace_desc(hint)`. A private workspace is opaque, with 0 bytes if nothing is kept.
        Only the same backend can compute a gradient with it. The backend must accept that gradient.
    deterministic: the result is bit-equal from run to run.
    exact: results for small integers are exact. Checks ignore False unless the algorithm permits an
        error factor above 1.
    error_factor: the error bound of the algorithm, as a multiple of the bound of direct sums.
        Checks use at most the factor that the algorithm of `op` permits: 1 for all algorithms
        except Winograd's.
    notes: words of `NOTES` that describe how the implementation computes this problem.
    detail: a text for people that names the kernel, such as "jit:avx512_core". At most 100
        characters, without commas.
    knobs: the parameters that a program may choose for this problem.
    tune: returns the acceptance of the same problem for other values. It receives a value for each
        knob by name. It must be as quick as `accept`, and returns a refusal for combinations that
        are not supported.
    """

    op: Operation
    build: Callable[[], Executable]
    efficiency: float | None = None
    seconds: float | None = None
    scratchpad_bytes: int = 0
    workspace: MemoryDesc | None = None
    deterministic: bool = True
    exact: bool = True
    error_factor: float = 1.0
    notes: Collection[str] = ()
    detail: str = ""
    knobs: Sequence[Knob] = ()
    tune: Callable[[Mapping[str, KnobValue]], Accepted | Refused] | None = None


OpT = TypeVar("OpT", bound=Operation)


class Implementation(ABC, Generic[OpT]):
    """One way to compute one operation; `name` is "backend:algorithm[:variant]" with the name of
    the backend that provides it.

    A subclass may name the operation for type checkers, as in `Implementation[EltwiseForward]`.

    data_types: the types of tensors that the implementation reads and writes. `answer` refuses
        other types and does not call `accept`. Workspaces, the condition of `select`, and the types
        s32, s8 and u8 of reorders need not be listed.
    attributes: the words of the attributes that the implementation supports. The words are
        "scales", "zero_points", "groups" (of scales and zero points), "dropout",
        "stochastic_rounding", "operand_types" (operands of post-ops of other types than f32),
        "sum_zero_point" (in a post-op `sum`), "depthwise" (a post-op) and "rnn_qparams" (numbers of
        recurrent cells of integers). `answer` refuses attributes whose words are not listed. Other
        attributes have no words.
    takes_repeats: whether input tensors may repeat their elements along a dim, by a stride of 0.
        Otherwise `answer` refuses such tensors and does not call `accept`.
    """

    name: str
    data_types: Collection[str] = ("f32",)
    attributes: Collection[str] = ()
    takes_repeats: bool = False

    def answer(
        self, op: OpT, attr: Attributes, engine: Any, hint: PrimitiveDesc | None
    ) -> Accepted | Refused:
        """Refuse types, attributes and repeats that are not supported, else call `accept`."""
        unlisted = OLD_INTEGERS if isinstance(op, Reorder) else ()
        for argument, desc in op.tensors():
            own = desc.data_type
            if own not in self.data_types and own not in unlisted and argument.name != "src2":
                return Refused(
                    "type", f"takes {', '.join(self.data_types)}; got {argument.name} of {own}"
                )
        for word in attr.words:
            if word not in self.attributes:
                own = ", ".join(self.attributes) or "no scales, dropout and the like"
                text = f"takes {own}; got {word}".replace("_", " ")
                return Refused("attribute", text)
        read = [(argument.name, desc) for argument, desc in op.tensors()]
        for name, desc in () if self.takes_repeats else [*read, *attr.operands()]:
            if desc.has_repeats:
                return Refused(
                    "format", f"takes no tensor with a stride of 0; got {name} of {desc}"
                )
        return self.accept(op, attr, engine, hint)

    @abstractmethod
    def accept(
        self, op: OpT, attr: Attributes, engine: Any, hint: PrimitiveDesc | None
    ) -> Accepted | Refused:
        """Accept or refuse the problem. The method must be quick. It must not compile or allocate.

        hint: the forward primitive descriptor of a backward operation, if the user gave it.
        """


Run: TypeAlias = Callable[[Stream, Sequence[Event]], Event]
"""A call with fixed arguments: run(stream, wait_for) launches it and returns its event."""


class Executable(ABC):
    """A compiled primitive without arguments.

    A run writes all elements of its outputs, and zeros to their padding. It changes no other bytes,
    not even gaps between elements. Tensors may begin at any byte. NaN and infinities propagate as
    in the formula; docs/conformance.md states the rules.

    chain: optional static function. It combines consecutive runs into one run if their executables
        have the same function object (see `Sequence`).
    """

    chain: ClassVar[Callable[[Sequence[Run]], Run] | None] = None

    @abstractmethod
    def bind(self, memories: Sequence[Memory], scratchpad: Buffer | None) -> Run:
        """Return a run with these arguments. It keeps the memories alive.

        memories: in the order of the operation's argument table, without absent arguments; then the
            operands of post-ops.
        """

    def execute(
        self,
        stream: Stream,
        memories: Sequence[Memory],
        scratchpad: Buffer | None,
        wait_for: Sequence[Event],
    ) -> Event:
        """Run once. Override this if `bind` is expensive.

        On an out-of-order stream, every launch with a scratchpad calls this method, including
        launches of bound calls. The returned event must end after the last use of the scratchpad.
        """
        return self.bind(memories, scratchpad)(stream, wait_for)


class HostFunction(Executable):
    """An executable for host engines that calls `function(*memories)` in the stream's thread.

    numpy does not report overflow, underflow or invalid operations in it, whatever the caller's
    `numpy.errstate` is.
    """

    def __init__(self, function: Callable[..., None]) -> None:
        self.function = function

    def bind(self, memories: Sequence[Memory], scratchpad: Buffer | None) -> Run:
        """Return a run that holds the memories."""
        function = self.function

        def run(stream: Stream, wait_for: Sequence[Event] = ()) -> Event:
            for event in wait_for:
                event.wait()
            if stream.lag:
                time.sleep(stream.lag)
            start = time.perf_counter()
            with np.errstate(all="ignore"):
                function(*memories)
            return TimedEvent(start, time.perf_counter()) if stream.profiling else COMPLETED

        return run


__all__ = [  # noqa: PLE0604 - the operations' names are strings
    "API_VERSION",
    "COMPLETED",
    "Accepted",
    "ArrayKind",
    "Attention",
    "Attributes",
    "Backend",
    "BatchNormalization",
    "Buffer",
    "BuildError",
    "CannotCompose",
    "Composition",
    "Convolution",
    "Deconvolution",
    "DescriptorError",
    "Device",
    "DeviceArrays",
    "DiskStore",
    "DnnError",
    "Dropout",
    "Eltwise",
    "Engine",
    "EngineUnavailable",
    "Event",
    "Executable",
    "ExecutionError",
    "GroupNormalization",
    "HostArrays",
    "HostEngine",
    "HostFunction",
    "HostStream",
    "INNERMOST",
    "Implementation",
    "InnerProduct",
    "Knob",
    "KnobValue",
    "LRN",
    "LayerNormalization",
    "Memory",
    "MemoryDesc",
    "NOTES",
    "Normalization",
    "Order",
    "PReLU",
    "Peaks",
    "PluginError",
    "Pooling",
    "PostOp",
    "Quantization",
    "RNN",
    "RNNDataQparams",
    "RNNQparams",
    "RNNWeightsQparams",
    "Refusal",
    "RefusalKind",
    "Refused",
    "Resampling",
    "Room",
    "Run",
    "Scales",
    "Scratchpad",
    "Shuffle",
    "Softmax",
    "Sources",
    "Steps",
    "Stream",
    "TimedEvent",
    "Wrapped",
    "ZeroPoints",
    "available_processors",
    "cache_count",
    "check_size",
    "data_type",
    "data_type_of",
    "deconvolutions",
    "depthwise_fusions",
    "hold_at_fork",
    "holding",
    "hookimpl",
    "in_main_thread",
    "locked",
    "measured_figures",
    "numpy_dtype",
    "remark",
    "rest",
    "uninterrupted",
    *_operations,
]


_COMPOSITION = {
    "Composition": "composition",
    "CannotCompose": "steps",
    "Room": "steps",
    "Steps": "steps",
    "deconvolutions": "deconvolution",
    "depthwise_fusions": "depthwise",
}


def __getattr__(name: str) -> Any:
    """Import the names of compositions on first use, because they use the selection."""
    if name not in _COMPOSITION:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from dnncore.forking import import_held

    module = uninterrupted(import_held, f"dnncore.composition.{_COMPOSITION[name]}")
    value = globals()[name] = getattr(module, name)
    return value
