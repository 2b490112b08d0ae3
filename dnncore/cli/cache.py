"""`dnncore cache` shows or empties the folder of compiled code and measurements."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import click
from rich.filesize import decimal

from dnncore.cli.lines import line
from dnncore.cli.rows import as_json_option, show, show_json
from dnncore.environment import flag
from dnncore.errors import DescriptorError
from dnncore.private_folder import refusal
from dnncore.store import Usage, cache_root, max_bytes, usage
from dnncore.store import clear as clear_stores

__all__ = ["cache"]


@click.group()
def cache() -> None:
    """Show or empty the folder of compiled code and measurements."""


@cache.command()
@as_json_option
def info(as_json: bool) -> None:
    """Show the folder, its limit, and the entries, bytes and times of use of each store.

    If programs do not use the folder, show the reason.
    """
    root, limit = cache_root(), max_bytes()
    reason = _switched_off() or refusal(root)
    stores = usage(root)
    total = _total(stores)
    if as_json:
        found = [{"name": s.name, **_figures(s), "reason": s.reason} for s in stores]
        show_json([{"path": str(root), "limit": limit, **_figures(total), "reason": reason,
                    "stores": found}])  # fmt: skip
        return
    line(str(root))
    if reason:
        line(f"not used: {reason}")
    line(f"{_contents(total)}; the limit is {decimal(limit)}")
    show([_row(store) for store in stores], "contents", "reason", "used")


@cache.command()
@click.option("--store", metavar="NAME", default="",
              help="Empty only this store of those that `dnncore cache info` lists.")  # fmt: skip
def clear(store: str) -> None:
    """Remove all entries of all stores. The exit status is 1 if one cannot be emptied."""
    root = cache_root()
    stores = clear_stores(root, store)
    line(f"{root}: removed {_contents(_total(stores))}")
    reason = refusal(root)
    if reason:
        line(f"not emptied: {reason}")
    failures = [store for store in stores if store.reason]
    show([_row(store) for store in failures], "contents", "reason")
    if reason or failures:
        raise SystemExit(1)


def _switched_off() -> str:
    """Return why `DNNCORE_DISK_CACHE` disables all stores; "" if it does not."""
    try:
        return "" if flag("DNNCORE_DISK_CACHE", True) else "DNNCORE_DISK_CACHE is 0"
    except DescriptorError as error:
        return str(error)


def _total(stores: list[Usage]) -> Usage:
    used = [store for store in stores if store.entries]
    return Usage(
        "all",
        sum(store.entries for store in used),
        sum(store.nbytes for store in used),
        min((store.oldest for store in used), default=0.0),
        max((store.newest for store in used), default=0.0),
    )


def _figures(store: Usage) -> dict[str, Any]:
    return {
        "entries": store.entries,
        "bytes": store.nbytes,
        "oldest": store.oldest,
        "newest": store.newest,
    }


def _row(store: Usage) -> dict[str, str]:
    used = f"used from {_time(store.oldest)} to {_time(store.newest)}" if store.entries else ""
    status = "failed" if store.reason else "ok"
    return {
        "name": store.name,
        "status": status,
        "contents": "" if store.reason else _contents(store),
        "used": used,
        "reason": store.reason,
    }


def _contents(store: Usage) -> str:
    entries = "1 entry" if store.entries == 1 else f"{store.entries} entries"
    return f"{entries}, {decimal(store.nbytes)}"


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds).isoformat(" ", "minutes")
