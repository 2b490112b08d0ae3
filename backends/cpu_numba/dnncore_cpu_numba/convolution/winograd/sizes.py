"""The algorithm of Winograd's convolution on the CPU, F(4x4, 3x3): its sizes."""

from __future__ import annotations

from dnncore.planning.toom_cook import F43

OUTPUTS = F43.outputs
SPAN = F43.span
POSITIONS = F43.positions
