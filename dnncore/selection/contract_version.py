"""The check of the contract version for which a backend was written."""

from __future__ import annotations

import re
from typing import NoReturn

from dnncore.backend import API_VERSION
from dnncore.errors import PluginError, shown

__all__ = ["checked_version"]

VERSION = re.compile(r"([0-9]{1,6})\.([0-9]{1,6})")


def checked_version(given: object, what: str) -> str:
    """Return the version as "major.minor" if this core can run backends of this version.

    given: the backend's `api_version`. The number 1 means "1.0": early versions had no minor
        number.
    what: the backend, for messages.

    Raises `PluginError` for another major version and for a newer minor one.
    """
    text = f"{given}.0" if type(given) is int else given
    found = VERSION.fullmatch(text) if isinstance(text, str) else None
    if found is None:
        raise PluginError(
            f"{what}: api_version must be the version of the contract that the backend was written"
            f' for, such as "{API_VERSION}"; got {shown(given)}'
        )
    major, minor = map(int, found.groups())
    own_major, own_minor = map(int, API_VERSION.split("."))
    if (major, minor) > (own_major, own_minor):
        _refuse(what, given, "update dnncore, or install an older release of the backend")
    if major < own_major:
        _refuse(what, given, "install a newer release of the backend, or an older dnncore")
    return f"{major}.{minor}"


def _refuse(what: str, given: object, remedy: str) -> NoReturn:
    major = API_VERSION.partition(".")[0]
    raise PluginError(
        f"{what} must be written for a version of the contract from {major}.0 to {API_VERSION},"
        f" which this dnncore has; got version {given}; {remedy}"
    )
