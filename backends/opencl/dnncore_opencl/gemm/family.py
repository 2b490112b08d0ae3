"""Families of kernels for matrix products. A family is created for a device and plans launches."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Protocol, Self

from dnncore.backend import Knob, KnobValue, Refused
from dnncore_opencl.elementwise.algorithms import POST_OP_WORDS
from dnncore_opencl.elementwise.random import RANDOM
from dnncore_opencl.gemm.product import Gemm
from dnncore_opencl.runtime.engine import OpenCLEngine
from dnncore_opencl.runtime.launch import Launch

QUANTIZATION = (*POST_OP_WORDS, "scales", "zero_points")
"""The attributes of families that multiply integers."""

DECOMPRESSION = (*QUANTIZATION, "groups", *RANDOM)
"""Those of families whose factors may be converted before they are multiplied."""


@dataclass(frozen=True)
class Plan:
    """The launches of a product and the bytes of scratchpad that they share.

    make: creates the launches when the program is built. This keeps selection fast: a gradient with
    strides has one launch for each combination of remainders.
    """

    make: Callable[[], tuple[Launch, ...]] = tuple
    scratchpad: int = 0

    @cached_property
    def launches(self) -> tuple[Launch, ...]:
        """The launches in order."""
        return self.make()


class Family(Protocol):
    """A family of kernels, created for a device.

    The format `any` depends on: channels_last (channels contiguous, otherwise row-major),
    columns_last (columns of b contiguous), bytes_along_k (8-bit operands contiguous along k).
    data_types: of tensors. attributes: as in `Implementation`. decodes: whether kernels can decode
    small weight types as they read them.
    """

    name: ClassVar[str]
    channels_last: ClassVar[bool] = False
    columns_last: ClassVar[bool] = False
    bytes_along_k: ClassVar[bool] = False
    decodes: ClassVar[bool] = False
    data_types: ClassVar[tuple[str, ...]] = ("f32",)
    attributes: ClassVar[tuple[str, ...]] = POST_OP_WORDS
    efficiency: ClassVar[Mapping[str, float]]

    @classmethod
    def of(cls, engine: OpenCLEngine) -> Self:
        """Return the family for an engine's device."""

    @classmethod
    def refusal(cls, engine: OpenCLEngine) -> Refused | None:  # noqa: ARG003
        """Return why the family does not run on a device; None if it does. Default: None."""
        return None

    def refusal_of(self, gemm: Gemm) -> Refused | None:
        """Return why the family cannot compute a product; None if it can. Default: None."""
        return None

    @property
    def knobs(self) -> tuple[Knob, ...]:
        """The parameters that a user may choose."""
        return ()

    def with_knobs(self, values: Mapping[str, KnobValue]) -> Self | Refused:
        """Return the family with these knob values, or the reason why they are not possible."""
        return self

    @classmethod
    def notes(cls, data_type: str, fpmath: str) -> tuple[str, ...]:  # noqa: ARG003
        """Return the notes of products of a data type with this `fpmath`."""
        return ()

    def plan(self, gemm: Gemm, start: int = 0) -> Plan:
        """Plan the launches of a product that has at least one element.

        start: bytes at the beginning of the scratchpad that are already used.
        """
