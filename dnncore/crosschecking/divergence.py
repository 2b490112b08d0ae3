"""Creates the `Divergence` of a wrong call: texts, heat map, saved inputs."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from dnncore.crosschecking.call import Call
from dnncore.crosschecking.heat_map import heat_map, save_picture
from dnncore.crosschecking.hidden import has_private_workspace
from dnncore.crosschecking.judgement import Difference, Judgement, promises
from dnncore.crosschecking.report import Divergence
from dnncore.crosschecking.saved import SavedCall, problem_of
from dnncore.errors import describe
from dnncore.interrupts import pass_on
from dnncore.selection.primitive_desc import PrimitiveDesc
from dnncore.verbose import MARK, primitive_fields

__all__ = ["divergence_of"]

Array = np.ndarray[Any, Any]


def divergence_of(
    call: Call,
    judgement: Judgement,
    other: PrimitiveDesc | None,
    again: Mapping[str, Array] | None,
    compared_with: str,
    folder: Path | None,
) -> Divergence:
    """Return the divergence of a call.

    other: the implementation that repeated it; None for the reference.
    again: the outputs of a second launch on the same inputs; None if it failed.
    compared_with: the name that was passed to `crosscheck`.
    folder: the folder in which the call is saved; None for a problem that diverged before.
    """
    first = judgement.differences[0]
    verdict = judgement.verdict
    if not judgement.blames_other:
        verdict += tuple(promises(call, judgement.differences, again))
    wrong = other if judgement.blames_other and other is not None else call.pd
    path, remarks = _saved(call, wrong, first, compared_with, folder)
    return Divergence(
        number=call.number,
        line=f"{MARK}primitive,exec,{primitive_fields(call.pd)}",
        problem=str(problem_of(call.pd, call.alias)),
        engine=call.pd.engine.name,
        implementation=call.pd.impl_name,
        other=other.impl_name if other else compared_with,
        comparisons={d.argument: d.comparison for d in judgement.differences},
        verdict=verdict,
        heat_map=tuple(heat_map(first.errors)) if folder else (),
        is_first=folder is not None,
        path=path,
        remarks=tuple(remarks),
    )


def _saved(
    call: Call,
    wrong: PrimitiveDesc,
    difference: Difference,
    compared_with: str,
    folder: Path | None,
) -> tuple[Path | None, list[str]]:
    """Save the call, with `wrong` as its implementation, and a picture. Return the file and
    remarks.
    """
    if folder is None:
        return None, []
    if has_private_workspace(wrong) and "workspace" in call.inputs:
        return None, ["not saved: its private workspace has no values"]
    kind = call.pd.op.KIND.replace(" ", "-")
    title = f"call {call.number}: {difference.argument} of {call.pd.impl_name}"
    try:
        path = _unused(folder / f"call-{call.number}-{kind}.npz")
        SavedCall.of(call, wrong, compared_with).save(path)
        missing = save_picture(path.with_suffix(".png"), difference.errors, title)
    except Exception as error:  # an error of the file system, numpy or matplotlib
        pass_on(error)
        return None, [f"not saved: {describe(error)}"]
    return path, [missing or f"picture: {path.with_suffix('.png')}"]


def _unused(path: Path) -> Path:
    """Create an empty file at this path, or at the first free path with a number. Return its path.

    Other processes, and other `with` blocks of this process, also count their calls from 1.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    for number in itertools.count(1):
        free = path if number == 1 else path.with_stem(f"{path.stem}-{number}")
        with contextlib.suppress(FileExistsError):
            free.touch(exist_ok=False)
            return free
    raise AssertionError("a number is free")
