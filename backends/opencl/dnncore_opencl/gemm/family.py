"""Families of kernels for matrix products. A family is made for a device and plans launches."""

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

    make: makes the launches when they are built. So a selection does not wait for them, of which a
    gradient with strides has one for each combination of remainders.
    """

    make: Callable[[], tuple[Launch, ...]] = tuple
    scratchpad: int = 0

    @cached_property
    def launches(self) -> tuple[Launch, ...]:
        """The launches in their order."""
        return self.make()


class Family(Protocol):
    """A family of kernels, made for a device.

    channels_last: whether the format `any` becomes one in which channels lie side by side, rather
    than row-major. columns_last: whether it becomes one in which the columns of b do. data_types:
    of tensors. attributes: as in `Implementation`. bytes_along_k: whether operands of 8 bits lie
    along k in the format `any`. decodes: whether kernels decode small weights as they read them.
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
        """The family for an engine's device."""

    @classmethod
    def refusal(cls, engine: OpenCLEngine) -> Refused | None:  # noqa: ARG003
        """Return why it does not run on a device, None if it does; by default it runs on all."""
        return None

    def refusal_of(self, gemm: Gemm) -> Refused | None:
        """Return why it cannot make a product, None if it can; by default it can make all."""
        return None

    @property
    def knobs(self) -> tuple[Knob, ...]:
        """The parameters that a program may choose."""
        return ()

    def with_knobs(self, values: Mapping[str, KnobValue]) -> Self | Refused:
        """The family with these values of its knobs, or why it cannot have them."""
        return self

    @classmethod
    def notes(cls, data_type: str, fpmath: str) -> tuple[str, ...]:  # noqa: ARG003
        """The notes of products of a type with this `fpmath`."""
        return ()

    def plan(self, gemm: Gemm, start: int = 0) -> Plan:
        """Plan the launches of a product that has elements.

        start: the bytes at the beginning of the scratchpad that are taken.
        """
