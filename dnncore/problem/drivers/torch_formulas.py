"""Oracles made of torch's formulas: forward results, and gradients by torch's differentiation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from dnncore.ops import Operation
from dnncore.ops.window import Windowed
from dnncore.problem.drivers.driver import Oracle

__all__ = ["Formula", "forward", "gradient", "padded"]

Formula = Callable[[Any, Any, Mapping[str, Any]], Any]
"""formula(torch, op, tensors) returns dst, from float64 tensors by argument name."""


def forward(formula: Formula) -> Oracle:
    """Return the oracle of a forward operation whose only output is dst."""
    return lambda torch, op, tensors: {"dst": formula(torch, op, tensors)}


def gradient(formula: Formula, *names: str) -> Oracle:
    """Return the oracle of a gradient with respect to these inputs of `formula`.

    An input that the gradient does not read is set to zero, because the gradient does not depend on
    it.
    """

    def oracle(torch: Any, op: Operation, tensors: Mapping[str, Any]) -> dict[str, Any]:
        inputs = {name: tensor for name, tensor in tensors.items() if "dst" not in name}
        for name in names:
            desc = getattr(op, name, None) or getattr(op, f"diff_{name}", None)
            if desc is not None:
                values = tensors.get(name, torch.zeros(desc.dims, dtype=torch.float64))
                inputs[name] = values.clone().requires_grad_()
        wanted = [name for name in names if name in inputs]
        dst = formula(torch, op, inputs)
        slopes = torch.autograd.grad(dst, [inputs[name] for name in wanted], tensors["diff_dst"])
        return {f"diff_{name}": slope for name, slope in zip(wanted, slopes, strict=True)}

    return oracle


def padded(torch: Any, op: Windowed, image: Any, value: float) -> Any:
    """Return the padded image of a windowed operation. Padding may be unequal or negative."""
    pairs = [*zip(op.padding_l, op.padding_r, strict=True)]
    added = [max(0, p) for pair in reversed(pairs) for p in pair]  # innermost dim first
    image = torch.nn.functional.pad(image, added, value=value)
    for dim, (left, right) in enumerate(pairs, start=2):  # pad cannot remove more than there is
        image = image.narrow(dim, max(0, -left), image.shape[dim] + min(0, left) + min(0, right))
    return image
