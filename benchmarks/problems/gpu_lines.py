"""The lines of docs/benchmarks_gpu.md: groups of problems, each with goals."""

from __future__ import annotations

from benchmarks.problems import operations
from benchmarks.problems.lines import AS_THEY_ARE, Line

__all__ = ["GPU_LINES", "GPU_SAMPLE", "PORTABLE_LINES"]

PEERS = ("cudnn", "torch-cuda")
DRAWN = 20261128  # the seed of the shapes of `operations`
CONVOLUTIONS = {"sets": ("resnet_50", "vgg_16"), "match": "^--conv", "peers": PEERS,
                "batches": ("64", "32"), "quick": ("64",)}  # fmt: skip
LARGE = {"sets": ("memory_bound_gpu",), "peers": PEERS, **AS_THEY_ARE}
STREAMS, PASSES = r"^--(?!lrn|reduction)", r"^--(lrn|reduction)"
F16 = {"dt": "f16"}
AUTO = {"alg": "auto"}  # because cuDNN may also choose Winograd's algorithm
BACKWARD = ("BWD_D", "BWD_W")
TILED, SIMD = "opencl:tiled*", "opencl:*simd*"
ON_CORES = {"sets": ("resnet_50",), "match": "^--conv", "peers": ("cpu",), "impl": SIMD}

GPU_LINES = (
    Line("Convolution forward, f32: ResNet-50, VGG-16", 1.4, 0.75, accurate=True,
         options=AUTO, **CONVOLUTIONS),
    Line("Convolution backward data, f32: ResNet-50, VGG-16", 1.2, 0.6, directions=("BWD_D",),
         accurate=True, options=AUTO, **CONVOLUTIONS),
    Line("Convolution backward weights, f32: ResNet-50, VGG-16", 1.2, 0.6, directions=("BWD_W",),
         accurate=True, options=AUTO, **CONVOLUTIONS),
    Line("Convolution forward, f16: ResNet-50, VGG-16", 0.6, None, options=F16, **CONVOLUTIONS),
    Line("Inner product, f32: AlexNet, VGG-16", 1.15, None, ("alexnet", "vgg_16"), match="^--ip",
         batches=("64", "256"), quick=("64",), peers=PEERS),
    Line("Matrix multiplication, f32: BERT", 1.15, None, ("products",), peers=PEERS, **AS_THEY_ARE),
    Line("Limited by memory, f32, 205 MB", 1.5, None, match=STREAMS, share=0.93, **LARGE),
    Line("LRN and reductions, f32, 205 MB", 1.5, None, match=PASSES, share=0.7, **LARGE),
    Line("Limited by memory, f16, 103 MB", 1.5, None, match=STREAMS, share=0.85, options=F16,
         **LARGE),
    Line("LRN and reductions, f16, 103 MB", 1.5, None, match=PASSES, share=0.7, options=F16,
         **LARGE),
    Line("The portable family alone: a product of 4096 x 4096", None, None, ("products",),
         match="cube", impl=TILED, rate=40e3, peers=PEERS, **AS_THEY_ARE),
    Line("The portable family alone: convolution forward, f32", 0.7, None, impl=TILED,
         **CONVOLUTIONS | {"batches": ("64",)}),
    Line("The portable family alone: convolution backward, f32", 0.7, None, directions=BACKWARD,
         impl=TILED, **CONVOLUTIONS | {"batches": ("64",)}),
    *operations.gpu_lines(DRAWN, PEERS),
)  # fmt: skip

# The goals of the page apply to samples with new seeds; see `samples.py`.
GPU_SAMPLE = Line("Sample of 40 layers, f32", 1.2, 0.6, (), draw=40, spared=2, options=AUTO,
                  directions=("FWD_I", *BACKWARD), batches=("4", "32"), quick=("4", "32"),
                  peers=PEERS)  # fmt: skip

# For OpenCL on the cores of a CPU, compared with the CPU engine.
PORTABLE_LINES = (
    Line("On cores: convolution forward, f32: ResNet-50", 0.5, None, batches=("4",), **ON_CORES),
    Line("On cores: convolution backward, f32: ResNet-50", 0.5, None, directions=BACKWARD,
         batches=("4",), **ON_CORES),
)  # fmt: skip
