"""What layers with weights share, convolution and inner product: directions, types, formats."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from dnncore.ops import Operation
from dnncore.problem.settings import Misread, Settings, format_text, read_choice, read_desc

__all__ = ["Layer"]

# dir -> (field of Layer, prop_kind, with bias)
DIRECTIONS: dict[str, tuple[str, str, bool]] = {
    "FWD_B": ("forward", "forward_training", True),
    "FWD_D": ("forward", "forward_training", False),
    "FWD_I": ("forward", "forward_inference", False),
    "FWD_IB": ("forward", "forward_inference", True),
    "BWD_D": ("backward_data", "", False),
    "BWD_W": ("backward_weights", "", False),
    "BWD_WB": ("backward_weights", "", True),
}


@dataclass(frozen=True)
class Layer:
    """The operations of a layer."""

    forward: type[Operation]
    backward_data: type[Operation]
    backward_weights: type[Operation]

    DEFAULTS: ClassVar[Settings] = {
        "dir": "FWD_B", "dt": "f32", "bia-dt": "f32",
        "stag": "any", "wtag": "any", "btag": "a", "dtag": "any",
    }  # fmt: skip

    @property
    def operations(self) -> tuple[type[Operation], ...]:
        """All three."""
        return (self.forward, self.backward_data, self.backward_weights)

    def read(
        self, settings: Settings, dims: Mapping[str, tuple[int, ...]], **fields: Any
    ) -> Operation:
        """The operation of tensors of these dims, by the roles they play forward."""
        direction, prop_kind, has_bias = read_choice(settings, "dir", DIRECTIONS)
        kind = getattr(self, direction)
        types = _types(settings)
        tensors = {
            getattr(kind, role.upper()): read_desc(settings, tag, dims[role], types[role])
            for role, tag in ROLES.items()
            if role != "bias" or has_bias
        }
        if prop_kind:
            fields["prop_kind"] = prop_kind
        operation: Operation = kind(**tensors, **fields)
        return operation

    def write(self, op: Any) -> dict[str, str]:
        """All settings but the shape's and the driver's own."""
        has_bias = op.bias_role is not None
        at = (self._direction(op), getattr(op, "prop_kind", ""), has_bias)
        settings = {"dir": next(name for name, row in DIRECTIONS.items() if row == at)}
        settings |= (
            {"bia-dt": op.bias_role.data_type, "btag": format_text(op.bias_role)}
            if (has_bias)
            else {"bia-dt": "f32", "btag": "a"}
        )
        descs = {"stag": op.src_role, "wtag": op.weights_role, "dtag": op.dst_role}
        types = [desc.data_type for desc in descs.values()]
        settings["dt"] = types[0] if len(set(types)) == 1 else ":".join(types)
        return settings | {tag: format_text(desc) for tag, desc in descs.items()}

    def _direction(self, op: Operation) -> str:
        names = ("forward", "backward_data", "backward_weights")
        return names[self.operations.index(type(op))]


ROLES = {"src": "stag", "weights": "wtag", "bias": "btag", "dst": "dtag"}


def _types(settings: Settings) -> dict[str, str]:
    """`f32`, or src:weights:dst."""
    names = settings["dt"].split(":")
    if len(names) not in (1, 3):
        raise Misread("dt", f"expected one type, or src:weights:dst; got {settings['dt']!r}")
    src, weights, dst = names * (3 // len(names))
    return {"src": src, "weights": weights, "bias": settings["bia-dt"], "dst": dst}
