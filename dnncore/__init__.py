"""Deep-learning primitives with oneDNN's programming model, on every engine."""

import os
import typing

from dnncore.engines.stream import Event, Stream
from dnncore.engines.threads import get_num_threads, set_num_threads
from dnncore.errors import (
    BackendNotFound,
    BuildError,
    CacheWarning,
    CrossCheckError,
    DescriptorError,
    DnnError,
    EngineUnavailable,
    ExecutionError,
    NoImplementation,
    PluginError,
    PluginWarning,
    ReferenceWarning,
)
from dnncore.tensors.memory_desc import MemoryDesc

if typing.TYPE_CHECKING:
    from dnncore import backend, cache, functional, ops, problem, testing  # noqa: F401
    from dnncore.attributes import Attributes
    from dnncore.comparison.compare import Comparison, against_reference, compare
    from dnncore.crosschecking.session import crosscheck
    from dnncore.engines.device import Device
    from dnncore.engines.engine import Engine
    from dnncore.engines.memory import Memory
    from dnncore.engines.peaks import Peaks
    from dnncore.execution.primitive import BoundPrimitive, Primitive
    from dnncore.execution.sequence import Sequence
    from dnncore.ops import (
        AttentionBackward,
        AttentionForward,
        BatchNormalizationBackward,
        BatchNormalizationForward,
        Binary,
        Concat,
        ConvolutionBackwardData,
        ConvolutionBackwardWeights,
        ConvolutionForward,
        DeconvolutionBackwardData,
        DeconvolutionBackwardWeights,
        DeconvolutionForward,
        EltwiseBackward,
        EltwiseForward,
        GroupNormalizationBackward,
        GroupNormalizationForward,
        InnerProductBackwardData,
        InnerProductBackwardWeights,
        InnerProductForward,
        LayerNormalizationBackward,
        LayerNormalizationForward,
        LRNBackward,
        LRNForward,
        MatMul,
        Operation,
        PoolingBackward,
        PoolingForward,
        PReLUBackward,
        PReLUForward,
        Reduction,
        Reorder,
        ResamplingBackward,
        ResamplingForward,
        RNNBackward,
        RNNForward,
        ShuffleBackward,
        ShuffleForward,
        SoftmaxBackward,
        SoftmaxForward,
        Sum,
    )
    from dnncore.post_op import PostOp
    from dnncore.quantization import Dropout, Scales, ZeroPoints
    from dnncore.rnn_quantization import RNNDataQparams, RNNWeightsQparams
    from dnncore.selection.dynamic import DynamicPrimitive
    from dnncore.selection.plugins import backends, devices, engine, register, unregister
    from dnncore.selection.primitive_desc import PrimitiveDesc, primitive_descs
    from dnncore.selection.reorder import reorder
    from dnncore.verbose import set_verbose

__version__ = "0.1.0"

__all__ = [
    "AttentionBackward",
    "AttentionForward",
    "Attributes",
    "BackendNotFound",
    "BatchNormalizationBackward",
    "BatchNormalizationForward",
    "Binary",
    "BoundPrimitive",
    "BuildError",
    "CacheWarning",
    "Comparison",
    "Concat",
    "ConvolutionBackwardData",
    "ConvolutionBackwardWeights",
    "ConvolutionForward",
    "CrossCheckError",
    "DeconvolutionBackwardData",
    "DeconvolutionBackwardWeights",
    "DeconvolutionForward",
    "DescriptorError",
    "Device",
    "DnnError",
    "Dropout",
    "DynamicPrimitive",
    "EltwiseBackward",
    "EltwiseForward",
    "Engine",
    "EngineUnavailable",
    "Event",
    "ExecutionError",
    "GroupNormalizationBackward",
    "GroupNormalizationForward",
    "InnerProductBackwardData",
    "InnerProductBackwardWeights",
    "InnerProductForward",
    "LRNBackward",
    "LRNForward",
    "LayerNormalizationBackward",
    "LayerNormalizationForward",
    "MatMul",
    "Memory",
    "MemoryDesc",
    "NoImplementation",
    "Operation",
    "PReLUBackward",
    "PReLUForward",
    "Peaks",
    "PluginError",
    "PluginWarning",
    "PoolingBackward",
    "PoolingForward",
    "PostOp",
    "Primitive",
    "PrimitiveDesc",
    "RNNBackward",
    "RNNDataQparams",
    "RNNForward",
    "RNNWeightsQparams",
    "Reduction",
    "ReferenceWarning",
    "Reorder",
    "ResamplingBackward",
    "ResamplingForward",
    "Scales",
    "Sequence",
    "ShuffleBackward",
    "ShuffleForward",
    "SoftmaxBackward",
    "SoftmaxForward",
    "Stream",
    "Sum",
    "ZeroPoints",
    "__version__",
    "against_reference",
    "backends",
    "cache",
    "compare",
    "crosscheck",
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


# Public names that `import dnncore` does not import, by module; all others are operations in `ops`.
_ON_FIRST_USE = {
    "attributes": ("Attributes",),
    "comparison.compare": ("Comparison", "against_reference", "compare"),
    "crosschecking.session": ("crosscheck",),
    "engines.engine": ("Device", "Engine"),
    "engines.peaks": ("Peaks",),
    "engines.memory": ("Memory",),
    "execution.primitive": ("BoundPrimitive", "Primitive"),
    "execution.sequence": ("Sequence",),
    "post_op": ("PostOp",),
    "quantization": ("Dropout", "Scales", "ZeroPoints"),
    "rnn_quantization": ("RNNDataQparams", "RNNWeightsQparams"),
    "verbose": ("set_verbose",),
    "selection.dynamic": ("DynamicPrimitive",),
    "selection.plugins": ("backends", "devices", "engine", "register", "unregister"),
    "selection.primitive_desc": ("PrimitiveDesc", "primitive_descs"),
    "selection.reorder": ("reorder",),
}
_MODULE_OF = {name: module for module, names in _ON_FIRST_USE.items() for name in names}
_SUBMODULES = ("backend", "cache", "functional", "ops", "problem", "testing")


def __getattr__(name: str) -> typing.Any:
    """Import a name of the list above when it is first used."""
    from dnncore.forking import import_held
    from dnncore.interrupts import uninterrupted

    if name in _SUBMODULES:
        value = uninterrupted(import_held, f"{__name__}.{name}")
    elif name in __all__:
        module = f"{__name__}.{_MODULE_OF.get(name, 'ops')}"
        value = getattr(uninterrupted(import_held, module), name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({name for name in globals() if name.startswith("__")} | {*__all__, *_SUBMODULES})


if "DNNCORE_VERBOSE" in os.environ:
    from dnncore import verbose as _verbose

    _verbose.read_environment()

if "DNNCORE_CROSSCHECK" in os.environ:
    from dnncore.crosschecking import environment as _environment

    _environment.read_environment()
