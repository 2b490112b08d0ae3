"""Deconvolution, composed of this backend's convolutions."""

from __future__ import annotations

from dnncore import backend

TABLES = backend.deconvolutions("cpu_numba")
FORWARD = TABLES[backend.DeconvolutionForward]
BACKWARD_DATA = TABLES[backend.DeconvolutionBackwardData]
BACKWARD_WEIGHTS = TABLES[backend.DeconvolutionBackwardWeights]
