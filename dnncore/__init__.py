"""Deep-learning primitives with oneDNN's programming model, on every engine."""

import os
import typing

from dnncore import cache
from dnncore.attributes import Attributes, PostOp
from dnncore.compare import Comparison, against_reference, compare
from dnncore.engine import Device, Engine, Peaks
from dnncore.errors import (
    BackendNotFound,
    BuildError,
    CacheWarning,
    DescriptorError,
    DnnError,
    EngineUnavailable,
    ExecutionError,
    NoImplementation,
    PluginError,
    ReferenceWarning,
)
from dnncore.memory import Memory
from dnncore.memory_desc import MemoryDesc
from dnncore.ops import (
    Binary,
    ConvolutionBackwardData,
    ConvolutionBackwardWeights,
    ConvolutionForward,
    EltwiseBackward,
    EltwiseForward,
    InnerProductBackwardData,
    InnerProductBackwardWeights,
    InnerProductForward,
    LRNBackward,
    LRNForward,
    MatMul,
    Operation,
    PoolingBackward,
    PoolingForward,
    Reduction,
    Reorder,
    SoftmaxBackward,
    SoftmaxForward,
    Sum,
)
from dnncore.plugins import backends, devices, engine, register, unregister
from dnncore.primitive import BoundPrimitive, Primitive
from dnncore.primitive_desc import PrimitiveDesc, primitive_descs
from dnncore.reorder import reorder
from dnncore.sequence import Sequence
from dnncore.stream import Event, Stream
from dnncore.threads import get_num_threads, set_num_threads

if typing.TYPE_CHECKING:
    from dnncore import functional
    from dnncore.verbose import set_verbose

__version__ = "0.1.0"

__all__ = [
    "Attributes",
    "BackendNotFound",
    "Binary",
    "BoundPrimitive",
    "BuildError",
    "CacheWarning",
    "Comparison",
    "ConvolutionBackwardData",
    "ConvolutionBackwardWeights",
    "ConvolutionForward",
    "DescriptorError",
    "Device",
    "DnnError",
    "EltwiseBackward",
    "EltwiseForward",
    "Engine",
    "EngineUnavailable",
    "Event",
    "ExecutionError",
    "InnerProductBackwardData",
    "InnerProductBackwardWeights",
    "InnerProductForward",
    "LRNBackward",
    "LRNForward",
    "MatMul",
    "Memory",
    "MemoryDesc",
    "NoImplementation",
    "Operation",
    "Peaks",
    "PluginError",
    "PoolingBackward",
    "PoolingForward",
    "PostOp",
    "Primitive",
    "PrimitiveDesc",
    "Reduction",
    "ReferenceWarning",
    "Reorder",
    "Sequence",
    "SoftmaxBackward",
    "SoftmaxForward",
    "Stream",
    "Sum",
    "__version__",
    "against_reference",
    "backends",
    "cache",
    "compare",
    "devices",
    "engine",
    "functional",
    "get_num_threads",
    "primitive_descs",
    "register",
    "reorder",
    "set_num_threads",
    "set_verbose",
    "unregister",
]


def __getattr__(name: str) -> typing.Any:
    """Import what is seldom needed when it is first used."""
    from importlib import import_module

    if name == "functional":
        return import_module("dnncore.functional")
    if name == "set_verbose":
        return import_module("dnncore.verbose").set_verbose
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


if "DNNCORE_VERBOSE" in os.environ:
    from dnncore import verbose as _verbose

    _verbose.read_environment()
