"""The class that describes networks: each method takes values and returns a layer's result."""

from __future__ import annotations

import math
from collections.abc import Sequence

from benchmarks.corpus.layers import Layer, Value
from benchmarks.corpus.shapes import (
    Axis,
    Size,
    axes_text,
    each,
    image_text,
    tensor_text,
    window_of,
    window_text,
)
from dnncore.problem.settings import Dims
from dnncore.problem.shapes import dims_text

__all__ = ["Net"]


class Net:
    """A network. Each method adds a layer, computes the dims of its result and returns it.

    Values have dims without the batch: (channels, height, width), (positions, features), ... .

    layers: the layers in the order of execution.
    parameters: the number of trained parameters, including those of layers that are not listed.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.layers: list[Layer] = []
        self.parameters = 0
        self._counts: dict[str, int] = {}

    def input(self, *dims: int, batch: int = 1) -> Value:
        """An input of the network."""
        return Value(dims, batch=batch)

    def parameter(self, *dims: int) -> Value:
        """A trained tensor that a layer adds or concatenates."""
        self.parameters += math.prod(dims)
        return Value(dims)

    def embedding(self, count: int, features: int, *positions: int) -> Value:
        """Rows of a trained table. The lookup is not listed as a layer. See `input`."""
        self.parameters += count * features
        return Value((*positions, features))

    def _add(
        self, driver: str, shape: str, inputs: Sequence[Value], dims: Dims, *options: str,
        kernels: int = 0, bias: int = 0, multiply_adds: int = 0, shared: bool = False,
        batch: int = 0,
    ) -> Value:  # fmt: skip
        """Add a layer. kernels, bias: numbers of parameters, not counted again with `shared`."""
        batch = batch or inputs[0].batch
        number = self._counts[driver] = self._counts.get(driver, 0) + 1
        output = Value(dims, len(self.layers), batch)
        moved = [math.prod(value.dims) * value.batch for value in (*inputs, output)]
        self.layers.append(
            Layer(
                f"{self.name}:{driver}{number}",
                driver,
                options,
                shape,
                tuple(inputs),
                output,
                has_bias=bool(bias) and driver in ("conv", "deconv", "ip"),
                multiply_adds=multiply_adds,
                activations=sum(moved),
                weights=kernels + bias,
            )
        )
        self.parameters += 0 if shared else kernels + bias
        return output

    # -- windows -------------------------------------------------------------------------------

    def conv(
        self, x: Value, channels: int, kernel: Size, *, stride: Size = 1,
        pad: Size | str | None = None, dilation: Size = 1, groups: int = 1, bias: bool = False,
        shared: bool = False, constant: bool = False,
    ) -> Value:  # fmt: skip
        """A convolution. pad: cells on both sides, by default (kernel - 1) / 2; see `window_of`.

        dilation: 1 is dense.
        shared: whether the parameters belong to an earlier layer and are counted there.
        constant: whether the weights are not trained.
        """
        window = window_of(x.dims[1:], kernel, stride, pad, dilation)
        ic, taps = x.dims[0], math.prod(axis.kernel for axis in window)
        dims = (channels, *(axis.dst for axis in window))
        group = f"g{groups}" if groups > 1 else ""
        kernels = channels * ic // groups * taps
        return self._add(
            "conv", f"{group}mb@{x.batch}ic{ic}oc{channels}{window_text(window)}", [x], dims,
            kernels=kernels, bias=channels if bias else 0, shared=shared or constant,
            multiply_adds=x.batch * kernels * math.prod(dims[1:]),
        )  # fmt: skip

    def deconv(
        self, x: Value, channels: int, kernel: Size, *, stride: Size = 1, pad: Size = 0,
        out: Size | None = None, groups: int = 1, bias: bool = False,
    ) -> Value:  # fmt: skip
        """A deconvolution.

        out: the size of the result, by default (size - 1) * stride + kernel - 2 * pad.
        """
        sizes = x.dims[1:]
        columns = [each(number, len(sizes)) for number in (kernel, stride, pad)]
        rows = list(zip(sizes, *columns, strict=True))
        plain = [(i - 1) * s + k - 2 * p for i, k, s, p in rows]
        outs = plain if out is None else each(out, len(sizes))
        window = [Axis(i, o, k, s, 1, p) for (i, k, s, p), o in zip(rows, outs, strict=True)]
        kernels = channels * x.dims[0] // groups * math.prod(columns[0])
        group = f"g{groups}" if groups > 1 else ""
        return self._add(
            "deconv", f"{group}mb@{x.batch}ic{x.dims[0]}oc{channels}{window_text(window)}", [x],
            (channels, *outs), kernels=kernels, bias=channels if bias else 0,
            multiply_adds=x.batch * kernels * math.prod(sizes),
        )  # fmt: skip

    def pool(
        self, x: Value, kernel: Size, *, stride: Size | None = None, pad: Size | str = 0,
        alg: str = "max", ceil: bool = False,
    ) -> Value:  # fmt: skip
        """A pooling. stride: by default the kernel. alg: max, avg_np or avg_p.

        ceil: whether the last window may reach beyond the end of the image.
        """
        stride = kernel if stride is None else stride
        window = window_of(x.dims[1:], kernel, stride, pad, 1, ceil=ceil)
        dims = (x.dims[0], *(axis.dst for axis in window))
        shape = f"mb@{x.batch}ic{x.dims[0]}{window_text(window)}"
        return self._add("pool", shape, [x], dims, f"--alg={alg}")

    def global_pool(self, x: Value, alg: str = "avg_np") -> Value:
        """A pooling over the whole image."""
        return self.pool(x, x.dims[1:], stride=1, alg=alg)

    def resample(self, x: Value, *sizes: int, alg: str = "nearest") -> Value:
        """The image resampled to another size. alg: nearest or linear."""
        pairs = axes_text([{"i": i, "o": o} for i, o in zip(x.dims[1:], sizes, strict=True)])
        shape = f"mb@{x.batch}ic{x.dims[0]}{pairs}"
        return self._add("resampling", shape, [x], (x.dims[0], *sizes), f"--alg={alg}")

    # -- normalizations ------------------------------------------------------------------------

    def batch_norm(self, x: Value, *, shared: bool = False) -> Value:
        """Batch normalization with a scale and a shift for each channel."""
        shape = f"mb@{x.batch}ic{x.dims[0]}{image_text(x)}"
        return self._add("bnorm", shape, [x], x.dims, "--flags=CH", kernels=2 * x.dims[0],
                         shared=shared)  # fmt: skip

    def group_norm(self, x: Value, groups: int, *, scales: bool = True) -> Value:
        """Group normalization; with a group for each channel, instance normalization."""
        flags = ["--flags=CH"] if scales else []
        shape = f"g{groups}mb@{x.batch}ic{x.dims[0]}{image_text(x)}"
        kernels = 2 * x.dims[0] if scales else 0
        return self._add("gnorm", shape, [x], x.dims, *flags, kernels=kernels)

    def layer_norm(self, x: Value, *, flags: str = "CH", shared: bool = False) -> Value:
        """Layer normalization over the last dim. flags: C: scale, H: shift, M: root mean square."""
        kernels = x.dims[-1] * sum(flag in flags for flag in "CH")
        return self._add("lnorm", tensor_text(x), [x], x.dims, f"--flags={flags}", kernels=kernels,
                         shared=shared)  # fmt: skip

    def lrn(self, x: Value, size: int = 5, alpha: str = "0.0001", k: int = 1) -> Value:
        """Local response normalization across channels, with beta 0.75."""
        shape = f"mb@{x.batch}ic{x.dims[0]}{image_text(x)}_ls{size}alpha{alpha}beta0.75k{k}"
        return self._add("lrn", shape, [x], x.dims, "--alg=ACROSS")

    def softmax(self, x: Value, axis: int = -1) -> Value:
        """Softmax along an axis of the value."""
        return self._add("softmax", tensor_text(x), [x], x.dims,
                         f"--axis={1 + axis % len(x.dims)}")  # fmt: skip

    # -- products ------------------------------------------------------------------------------

    def linear(self, x: Value, features: int, *, bias: bool = True, shared: bool = False) -> Value:
        """A linear layer: an inner product over all inputs.

        For a value (positions, features), a matrix product over the features of each position.
        """
        inputs = x.dims[1] if len(x.dims) == 2 else math.prod(x.dims)
        counts = {"kernels": inputs * features, "bias": features if bias else 0, "shared": shared}
        if len(x.dims) != 2:
            shape = f"mb@{x.batch}ic{x.dims[0]}{image_text(x)}oc{features}"
            return self._add("ip", shape, [x], (features,), **counts,
                             multiply_adds=x.batch * inputs * features)  # fmt: skip
        rows = x.batch * x.dims[0]
        shape = f"@{rows}x{inputs}:{inputs}x{features}"
        words = ("--stag=ab", "--dtag=ab", *(["--bia-dt=f32"] if bias else []))
        return self._add("matmul", shape, [x], (x.dims[0], features), *words, **counts,
                         multiply_adds=rows * inputs * features)  # fmt: skip

    def matmul(self, a: Value, b: Value, *, transposed: bool = False) -> Value:
        """The products of two batches of matrices, (count, m, k) and (count, k, n).

        transposed: whether the second batch is (count, n, k).
        """
        count, m, k = a.dims
        n = b.dims[1] if transposed else b.dims[2]
        many = f"@{a.batch}x{count}"
        tags = ("--stag=abcd", f"--wtag={'abdc' if transposed else 'abcd'}", "--dtag=abcd")
        return self._add("matmul", f"{many}x{m}x{k}:{many}x{k}x{n}", [a, b], (count, m, n), *tags,
                         multiply_adds=a.batch * count * m * k * n)  # fmt: skip

    # -- element by element --------------------------------------------------------------------

    def eltwise(self, x: Value, alg: str, alpha: str = "", beta: str = "") -> Value:
        """A function of each element."""
        options = [("alg", alg), ("alpha", alpha), ("beta", beta)]
        words = [f"--{name}={text}" for name, text in options if text]
        return self._add("eltwise", tensor_text(x), [x], x.dims, *words)

    def relu(self, x: Value, alpha: str = "") -> Value:
        """The maximum of x and alpha * x."""
        return self.eltwise(x, "relu", alpha)

    def prelu(self, x: Value) -> Value:
        """Relu with a trained alpha for each channel."""
        slopes = (1, x.dims[0], *(1,) * len(x.dims[1:]))
        return self._add("prelu", f"{tensor_text(x)}:{dims_text(slopes)}", [x], x.dims,
                         kernels=x.dims[0])  # fmt: skip

    def binary(self, x: Value, y: Value, alg: str = "add") -> Value:
        """A function of two tensors. Dims of y may be 1, and are then broadcast."""
        first = f"@{y.batch}" if y.source >= 0 or y.batch > 1 else "1"
        shape = f"{tensor_text(x)}:{first}x{dims_text(y.dims)}"
        return self._add("binary", shape, [x, y], x.dims, f"--alg={alg}")

    def sum(self, *values: Value) -> Value:
        """The sum of several tensors."""
        types = ":".join(["f32"] * len(values))
        return self._add("sum", tensor_text(values[0]), values, values[0].dims, f"--sdt={types}")

    # -- movements -----------------------------------------------------------------------------

    def concat(self, *values: Value, axis: int = 0) -> Value:
        """Tensors one after the other along an axis of the values, by default their channels."""
        dims = list(values[0].dims)
        dims[axis] = sum(value.dims[axis] for value in values)
        shape = ":".join(map(tensor_text, values))
        batch = max(value.batch for value in values)
        return self._add("concat", shape, values, tuple(dims), f"--axis={1 + axis % len(dims)}",
                         batch=batch)  # fmt: skip

    def shuffle(self, x: Value, groups: int) -> Value:
        """Interleave the channels of several groups."""
        options = ("--axis=1", f"--group={groups}")
        return self._add("shuffle", tensor_text(x), [x], x.dims, *options)

    def transpose(self, x: Value, *order: int) -> Value:
        """A copy with permuted dims."""
        letters = "".join(chr(ord("b") + axis) for axis in order)
        dims = tuple(x.dims[axis] for axis in order)
        output = self._add("reorder", tensor_text(x), [x], x.dims, f"--dtag=a{letters}")
        return Value(dims, output.source, output.batch, "reshape")

    def reduce(self, x: Value, dims: Dims, alg: str, *options: str) -> Value:
        """A reduction to dims, some of which are 1."""
        shape = f"{tensor_text(x)}:@{x.batch}x{dims_text(dims)}"
        return self._add("reduction", shape, [x], dims, f"--alg={alg}", *options)

    # -- views ---------------------------------------------------------------------------------

    def view(self, x: Value, *dims: int, batch: int = 1) -> Value:
        """Return the elements of x with other dims. Only strides change, so it adds no layer."""
        if batch * math.prod(dims) != x.batch * math.prod(x.dims):
            raise ValueError(f"{self.name}: {x.batch} x {x.dims} cannot be {batch} x {dims}")
        return Value(dims, x.source, batch, x.view if x.view == "part" else "reshape")

    def part(self, x: Value, *dims: int) -> Value:
        """Some of the elements, such as half of the channels. This adds no layer."""
        return Value(dims, x.source, x.batch, "part")
