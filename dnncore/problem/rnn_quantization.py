"""Numbers of recurrent cells of integers: `--attr-rnn-data-qparams=100:128`, scale and shift;
`--attr-rnn-weights-qparams=24:200x150`, a mask and scales, which are repeated until each gate and
channel has one; `--attr-rnn-projection-qparams=8:90`, the same for the projection.
"""

from __future__ import annotations

from typing import Any

from dnncore.attributes import Attributes
from dnncore.errors import DescriptorError
from dnncore.ops import Operation
from dnncore.problem.settings import Misread, Settings, misread, number_text, read_number
from dnncore.rnn_quantization import RNNDataQparams, RNNWeightsQparams, count_of_scales

__all__ = ["DEFAULTS", "read", "write"]

FIELDS = {
    "attr-rnn-data-qparams": "rnn_data_qparams",
    "attr-rnn-weights-qparams": "rnn_weights_qparams",
    "attr-rnn-projection-qparams": "rnn_weights_projection_qparams",
}
DEFAULTS: Settings = dict.fromkeys(FIELDS, "")


def read(settings: Settings, op: Operation) -> dict[str, Any]:
    """The attributes by field. Raises `Misread`."""
    return {
        field: _read_one(settings, option, op)
        for option, field in FIELDS.items()
        if settings[option]
    }


def _read_one(settings: Settings, option: str, op: Operation) -> Any:
    first, *rest = settings[option].split(":")
    is_data = option == "attr-rnn-data-qparams"
    if len(rest) > 1 or (not is_data and not (rest and first.isdecimal())):
        misread(settings, option, "SCALE[:SHIFT]" if is_data else "MASK:SCALE[xSCALE...]")
    texts = [first, *rest] if is_data else rest[0].split("x")
    numbers = [read_number(settings, option, text) for text in texts]
    try:
        if is_data:
            return RNNDataQparams(*numbers)
        mask = int(first)
        count = count_of_scales(op, FIELDS[option], mask) or len(numbers)
        return RNNWeightsQparams([numbers[i % len(numbers)] for i in range(count)], mask)
    except DescriptorError as error:
        raise Misread(option, str(error)) from None


def write(attr: Attributes) -> dict[str, str]:
    """The inverse of `read`."""
    texts = dict(DEFAULTS)
    data = attr.rnn_data_qparams
    if data is not None:
        scale, shift = number_text(data.scale), number_text(data.shift)
        texts["attr-rnn-data-qparams"] = scale + (f":{shift}" if data.shift else "")
    for option, field in list(FIELDS.items())[1:]:
        own: RNNWeightsQparams | None = getattr(attr, field)
        if own is not None:
            scales = "x".join(map(number_text, _period(tuple(own.scales))))
            texts[option] = f"{own.mask}:{scales}"
    return texts


def _period(numbers: tuple[float, ...]) -> tuple[float, ...]:
    """The shortest beginning that all numbers repeat."""
    for length in range(1, len(numbers)):
        if all(number == numbers[i % length] for i, number in enumerate(numbers)):
            return numbers[:length]
    return numbers
