"""The hook through which a plugin declares its backends to dnncore."""

from __future__ import annotations

from collections.abc import Sequence

import pluggy

from dnncore.backend import Backend

hookspec = pluggy.HookspecMarker("dnncore")


@hookspec
def dnncore_backends() -> Backend | Sequence[Backend]:  # type: ignore[empty-body]
    """Return the plugin's `Backend` or a sequence of them. Must be quick and import little."""
