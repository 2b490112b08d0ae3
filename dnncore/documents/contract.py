"""Prints the page on the contract: python -m dnncore.documents.contract > docs/contract.md."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, get_args

from dnncore import backend
from dnncore.documents.docstrings import (
    entry,
    first_sentence,
    markdown,
    must_be_defined,
    signature,
)
from dnncore.engines.device import LIMITS

__all__ = ["SECTIONS", "page"]

INTRODUCTION = """# The contract of backends

This page lists all that a backend imports from `dnncore.backend`.
[write-a-backend.md](write-a-backend.md) shows it step by step. `python -m
dnncore.documents.contract > docs/contract.md` writes the page from the docstrings.
`help(dnncore.backend.NAME)` shows the types, too.
"""


@dataclass(frozen=True)
class Section:
    """Names of one role.

    is_brief: whether only the first sentence of each method's docstring is printed.
    """

    title: str
    about: str
    names: tuple[str, ...]
    is_brief: bool = False


SECTIONS = (
    Section(
        "What a backend defines",
        "A module with a hook, which returns a backend. The rest of this page is for the modules"
        " that the backend names.",
        ("hookimpl", "Backend", "API_VERSION"),
    ),
    Section(
        "Implementations",
        "Derive from `Implementation`. Its `accept` returns `Accepted` or `Refused`, and"
        " `Accepted.build` makes an `Executable`. On a host engine, `HostFunction` is one.",
        (
            "Implementation", "Accepted", "Refused", "RefusalKind", "Refusal", "Executable", "Run",
            "HostFunction", "NOTES", "Knob", "KnobValue",
        ),
    ),
    Section(
        "Compositions",
        "An operation without a kernel of its own may be offered as steps of operations that the"
        " backend computes. Derive from `Composition`. `deconvolutions` and"
        " `depthwise_fusions` return such implementations.",
        (
            "Composition",
            "Steps",
            "Room",
            "CannotCompose",
            "deconvolutions",
            "depthwise_fusions",
        ),
    ),
    Section(
        "Engines",
        "A backend that only adds implementations to an engine kind needs none of this. For a"
        " device whose kernels use host memory, derive from `HostEngine`, and define only `kind`."
        " For a device with memory of its own, derive from `Engine`.",
        ("Engine", "HostEngine", "Device", "Peaks", "Buffer", "Wrapped"),
    ),
    Section(
        "Streams and events",
        "An engine with memory of its own derives from both. Its streams define `wait`, its events"
        " `wait`, `done` and `error`, and `start` and `end` if it supports profiling.",
        ("Stream", "Order", "HostStream", "Event", "COMPLETED", "TimedEvent", "Scratchpad"),
    ),
    Section(
        "Arrays of other libraries",
        "One-line functions take and return arrays of the kinds that backends know.",
        ("ArrayKind", "HostArrays", "DeviceArrays"),
    ),
    Section(
        "Operations",
        "`accept` gets one of these. [operations.md](operations.md) has the fields, tensors and"
        " formulas of each.",
        (
            "Operation", "Argument", "Attention", "BatchNormalization", "Convolution",
            "Deconvolution", "Eltwise", "GroupNormalization", "InnerProduct", "LayerNormalization",
            "LRN", "Normalization", "PReLU", "Pooling", "RNN", "Resampling", "Shuffle", "Softmax",
            "Sources",
        ),
        is_brief=True,
    ),
    Section(
        "Attributes and tensors",
        "`accept` gets `Attributes`, and `bind` gets memories.",
        (
            "Attributes", "PostOp", "Quantization", "Scales", "ZeroPoints", "Dropout",
            "RNNDataQparams", "RNNWeightsQparams", "RNNQparams", "Memory", "MemoryDesc",
            "data_type", "data_type_of", "numpy_dtype",
        ),
        is_brief=True,
    ),
    Section(
        "Errors",
        "A backend raises these, and no exception of another library.",
        (
            "DnnError", "DescriptorError", "EngineUnavailable", "BuildError", "ExecutionError",
            "PluginError",
        ),
    ),
    Section(
        "Services",
        "A backend may use these: code and measurements on disk, processors, forks and interrupts.",
        (
            "DiskStore", "cache_count", "measured_figures", "available_processors", "check_size",
            "remark", "hold_at_fork", "INNERMOST", "holding", "in_main_thread", "locked", "rest",
            "uninterrupted",
        ),
        is_brief=True,
    ),
)  # fmt: skip


def _texts(alias: Any) -> str:
    return ", ".join(f'"{text}"' for text in get_args(alias))


ABOUT_NAMES = {  # names without a docstring
    "hookimpl": "The decorator of the hook.",
    "API_VERSION": "The version of the contract of this dnncore.",
    "RefusalKind": f"The kind of a refusal's reason: {_texts(backend.RefusalKind)}. Only the core"
    ' uses "filter" and "failed".',
    "Run": "A call with fixed arguments: `run(stream, wait_for)` launches it and returns an event.",
    "Buffer": "A block of an engine's memory: any object. On host engines a 1-D uint8 array.",
    "NOTES": "The words of `Accepted.notes`: "
    + "; ".join(f"`{word}`: {meaning}" for word, meaning in backend.NOTES.items()) + ".",
    "Order": f"The order of a stream's commands: {_texts(backend.Order)}.",
    "COMPLETED": "The event of a command that has ended before its call returns.",
    "INNERMOST": "The level of locks that are acquired last before a fork; see `hold_at_fork`.",
}  # fmt: skip

NOTES = {  # texts that follow a docstring
    "Device": "Standard keys of `limits`, each optional: "
    + ", ".join(f"`{key}` ({kind.__name__})" for key, kind in LIMITS.items()) + ".",
}  # fmt: skip


def page() -> Iterator[str]:
    """Yield the lines of the page."""
    yield INTRODUCTION
    yield from markdown(backend.__doc__)
    for section in SECTIONS:
        yield from ("", f"## {section.title}", "")
        yield from markdown(section.about)
        for name in section.names:
            yield ""
            yield from _name(name, section.is_brief)


def _name(name: str, is_brief: bool) -> Iterator[str]:
    value = getattr(backend, name)
    if name in ABOUT_NAMES or get_args(value):
        yield from (f"### `{name}`", "")
        choices = " or ".join(f"`{getattr(c, '__name__', c)}`" for c in get_args(value))
        yield from markdown(ABOUT_NAMES.get(name, f"{choices}."))
    elif inspect.isclass(value):
        yield from _class(name, value, is_brief)
    else:
        yield from (f"### `{signature(name, value)}`", "")
        yield from markdown(value.__doc__)


def _class(name: str, value: type, is_brief: bool) -> Iterator[str]:
    has_call = not inspect.isabstract(value) and not issubclass(value, Exception)
    yield from (f"### `{signature(name, value) if has_call else name}`", "")
    yield from markdown(value.__doc__)
    if name in NOTES:
        yield ""
        yield from markdown(NOTES[name])
    members = [(n, m) for n, m in vars(value).items() if not n.startswith("_") and _is_method(m)]
    if members:
        yield from ("", "Methods and properties:", "")
    for member_name, member in members:
        function = getattr(member, "__func__", member)
        is_property = isinstance(member, property)
        label = member_name if is_property else signature(member_name, function)
        text = first_sentence(function.__doc__) if is_brief else function.__doc__
        kind = " (must be defined)" if must_be_defined(member) else ""
        yield from entry(f"`{label}`{kind}", text)


def _is_method(member: Any) -> bool:
    return inspect.isroutine(member) or isinstance(member, property)


if __name__ == "__main__":
    print("\n".join(page()))
