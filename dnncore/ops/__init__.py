"""The operations: one file each, with its fields, argument table, rules and cost.

Every layer of the core above may import it. Backends get operations from `dnncore.backend`.
"""

from dnncore.ops.attention import AttentionBackward, AttentionForward
from dnncore.ops.batch_normalization import (
    BatchNormalizationBackward,
    BatchNormalizationForward,
)
from dnncore.ops.binary import Binary
from dnncore.ops.concat import Concat
from dnncore.ops.convolution import (
    ConvolutionBackwardData,
    ConvolutionBackwardWeights,
    ConvolutionForward,
)
from dnncore.ops.deconvolution import (
    DeconvolutionBackwardData,
    DeconvolutionBackwardWeights,
    DeconvolutionForward,
)
from dnncore.ops.eltwise import EltwiseBackward, EltwiseForward
from dnncore.ops.group_normalization import (
    GroupNormalizationBackward,
    GroupNormalizationForward,
)
from dnncore.ops.inner_product import (
    InnerProductBackwardData,
    InnerProductBackwardWeights,
    InnerProductForward,
)
from dnncore.ops.layer_normalization import (
    LayerNormalizationBackward,
    LayerNormalizationForward,
)
from dnncore.ops.lrn import LRNBackward, LRNForward
from dnncore.ops.matmul import MatMul
from dnncore.ops.operation import Argument, Operation
from dnncore.ops.pooling import PoolingBackward, PoolingForward
from dnncore.ops.prelu import PReLUBackward, PReLUForward
from dnncore.ops.reduction import Reduction
from dnncore.ops.reorder import Reorder
from dnncore.ops.resampling import ResamplingBackward, ResamplingForward
from dnncore.ops.rnn import RNNBackward, RNNForward
from dnncore.ops.shuffle import ShuffleBackward, ShuffleForward
from dnncore.ops.softmax import SoftmaxBackward, SoftmaxForward
from dnncore.ops.sum import Sum

__all__ = [
    "Argument",
    "AttentionBackward",
    "AttentionForward",
    "BatchNormalizationBackward",
    "BatchNormalizationForward",
    "Binary",
    "Concat",
    "ConvolutionBackwardData",
    "ConvolutionBackwardWeights",
    "ConvolutionForward",
    "DeconvolutionBackwardData",
    "DeconvolutionBackwardWeights",
    "DeconvolutionForward",
    "EltwiseBackward",
    "EltwiseForward",
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
    "Operation",
    "PReLUBackward",
    "PReLUForward",
    "PoolingBackward",
    "PoolingForward",
    "RNNBackward",
    "RNNForward",
    "Reduction",
    "Reorder",
    "ResamplingBackward",
    "ResamplingForward",
    "ShuffleBackward",
    "ShuffleForward",
    "SoftmaxBackward",
    "SoftmaxForward",
    "Sum",
]
