"""The implementations of attention, best first."""

from dnncore_opencl.attention.mma import AttentionMma
from dnncore_opencl.attention.tiled import Attention

FORWARD = (AttentionMma(), Attention())
BACKWARD = (AttentionMma(), Attention())
