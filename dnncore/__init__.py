"""Deep-learning primitives with oneDNN's programming model, on every engine."""

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

if typing.TYPE_CHECKING:
    from dnncore import functional

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
    "primitive_descs",
    "register",
    "reorder",
    "unregister",
]


def __getattr__(name: str) -> typing.Any:
    """Import `dnncore.functional` when it is first used."""
    if name == "functional":
        from importlib import import_module

        return import_module("dnncore.functional")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
