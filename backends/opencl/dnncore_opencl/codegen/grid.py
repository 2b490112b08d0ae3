"""The division of a nest of loops among work-items.

An item is a box of iterations of the two innermost loops, `r` and `t`. The variables of the other
loops are l0, l1, .... On a CPU each core gets a few work-groups of one work-item, and each
work-item computes many large items in a row. On a GPU each work-item computes one small item.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from dnncore_opencl.codegen.layout import Loop, Nest, Parameters, decode, offset_text
from dnncore_opencl.devices.nvidia import is_nvidia
from dnncore_opencl.runtime.launch import Launch, Source, padded, template

CPU_ITEM = 4096  # iterations: more time than index arithmetic, less than a core's share
CPU_GROUPS = 8  # per core, so that cores that are busy with other work take fewer
GPU_GROUP = 256  # work-items, supported by every GPU


@dataclass(frozen=True)
class Grid:
    """A 1-D launch. Each work-item computes `count` consecutive items of `items`."""

    items: int
    count: int
    size: tuple[int]
    group: tuple[int]

    @classmethod
    def of(cls, engine: Any, items: int) -> Grid:
        """Return a grid for at least one item."""
        if not engine.is_cpu:
            return cls(items, 1, (padded(items, GPU_GROUP),), (GPU_GROUP,))
        groups = min(items, CPU_GROUPS * engine.device.limits["compute_units"])
        count = -(-items // groups)
        return cls(items, count, (-(-items // count),), (1,))

    @classmethod
    def of_groups(cls, items: int, workers: int, span: int = 1) -> Grid:
        """Return a grid of work-groups: `span` items per group, `workers` work-items per item."""
        return cls(items, 1, (padded(items, span) * workers,), (workers * span,))

    def defines(self, parameters: Parameters) -> dict[str, str]:
        """Return ITEMS and COUNT, as arguments."""
        return {"ITEMS": parameters.size(self.items), "COUNT": parameters.size(self.count)}

    def launch(
        self,
        kernel: str,
        parameters: Parameters,
        defines: Mapping[str, str],
        snippets: Sequence[str],
        options: tuple[str, ...] = (),
        work: float = math.inf,
        is_exact: bool = False,
    ) -> Launch:
        """Return a launch of the kernel with these parameters; see `Source` and `Launch`."""
        defines = {**defines, **parameters.defines}
        source = Source(kernel, parameters.schema, defines, snippets, options, is_exact=is_exact)
        return Launch(source, parameters.arguments, self.size, self.group, work)


@dataclass(frozen=True)
class Boxes:
    """A nest of loops whose items are `rows` iterations of loop `r` times `run` of loop `t`.

    beside: whether neighbouring items are neighbours along `r` instead of `t`. far: whether items
    that are neighbours along `t` are as far apart as possible. constant: whether `rows` and `run`
    are literals in the kernel, so that a compiler can unroll.
    """

    nest: Nest
    rows: int
    run: int
    beside: bool = False
    far: bool = False
    constant: bool = False

    @classmethod
    def of(
        cls, engine: Any, nest: Nest, rows: int = 1, run: int = 1, *, beside: bool = False
    ) -> Boxes:
        """Choose boxes. `rows`, `run` and `beside` apply to GPUs only."""
        if not engine.is_cpu:
            return cls(nest, rows, run, beside=beside, constant=True)
        length = nest.loops[-1].size if nest.loops else 1
        return cls(nest, max(1, CPU_ITEM // length), CPU_ITEM)

    @cached_property
    def variables(self) -> list[str]:
        """The variables of the loops, outermost first."""
        loops = len(self.nest.loops)
        return [*(f"l{i}" for i in range(loops - 2)), "r", "t"][-loops or 2 :]

    @cached_property
    def inner(self) -> tuple[Loop | None, Loop | None]:
        """The loops `r` and `t`; None if the nest has fewer than two loops."""
        _, *loops = (None, None, None, *self.nest.loops)
        return loops[-2], loops[-1]

    @cached_property
    def lengths(self) -> tuple[int, int]:
        """The iteration counts of the loops `r` and `t`."""
        rows, run = (loop.size if loop else 1 for loop in self.inner)
        return rows, run

    def is_single(self, lanes: int) -> bool:
        """Whether each box is at most one vector."""
        return self.constant and (self.rows, self.run) == (1, lanes)

    @property
    def items(self) -> int:
        """The number of boxes."""
        rows, run = self.lengths
        outer = math.prod(loop.size for loop in self.nest.loops[:-2])
        return outer * -(-rows // self.rows) * -(-run // self.run)

    def decode(self, parameters: Parameters) -> str:
        """Return statements that compute the outer variables and the box's bounds from `rest`.

        The bounds are r_begin, r_end, t_begin and t_end.
        """
        outer = self.nest.loops[:-2]
        (rows, run), size = self.lengths, parameters.size
        names = [*self.variables[: len(outer)], "r_box", "t_box"]
        counts = [*(loop.size for loop in outer), -(-rows // self.rows), -(-run // self.run)]
        if self.beside:
            names[-2:], counts[-2:] = names[:-3:-1], counts[:-3:-1]
        if self.far:
            place = names.index("t_box")
            names.insert(0, names.pop(place))
            counts.insert(0, counts.pop(place))
        text = ""
        if len(self.nest.loops) < 2:
            text = "const INDEX r_box = 0; "
            names, counts = ["t_box"], counts[-1:]
        text += decode("rest", names, counts, parameters)
        for name, step, length in (("r", self.rows, rows), ("t", self.run, run)):
            steps = str(step) if self.constant else size(step)
            text += f"const INDEX {name}_begin = {name}_box * {steps}; "
            text += f"const INDEX {name}_end = min({name}_begin + {steps}, {size(length)}); "
        return text

    def outer_offset(self, place: int, parameters: Parameters) -> str:
        """Return the term of the outer variables in the offset of the tensor at `place`."""
        outer = zip(self.nest.loops[:-2], self.variables, strict=False)
        return "".join(offset_text(loop.chains[place], name, parameters) for loop, name in outer)

    def inner_offset(self, place: int, parameters: Parameters) -> str:
        """Return the term of `r` and `t` in the offset of the tensor at `place`."""
        pairs: Sequence[tuple[Loop | None, str]] = tuple(zip(self.inner, "rt", strict=True))
        return "".join(
            offset_text(loop.chains[place], name, parameters) for loop, name in pairs if loop
        )


@dataclass(frozen=True)
class Shares:
    """The work-items that compute items: `workers` per item, and `span` items per work-group.

    across: whether neighbouring work-items of a group belong to neighbouring items.
    """

    workers: int = 1
    span: int = 1
    across: bool = False

    def grid(self, engine: Any, items: int) -> Grid:
        """Return the grid of a launch."""
        if self.workers == 1:
            return Grid.of(engine, items)
        return Grid.of_groups(items, self.workers, self.span)

    @property
    def defines(self) -> dict[str, str]:
        """The defines of codegen/groups.cl."""
        across = {"ACROSS": ""} if self.across else {}
        return {"WORKERS": str(self.workers), "SPAN": str(self.span), **across}

    def snippets(self, engine: Any, *, is_wide: bool = False) -> tuple[str, ...]:
        """Return the templates that a kernel uses. is_wide: whether values are doubles."""
        shuffles = is_nvidia(engine) and self.workers > 1 and not self.across and not is_wide
        names = ("shuffle_nvidia", "groups") if shuffles else ("groups",)
        return tuple(map(template, names))


def power_of_two(size: int) -> int:
    """Return the smallest power of two that is at least `size`."""
    return 1 << (size - 1).bit_length()


def power_of_two_within(*limits: int) -> int:
    """Return the largest power of two that exceeds no limit, but at least 1."""
    return 1 << max(1, min(limits)).bit_length() - 1
