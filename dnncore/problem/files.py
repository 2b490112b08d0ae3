"""Files of problem texts and of verbose lines."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dnncore.errors import DescriptorError

__all__ = ["found_file", "text_of"]


def found_file(name: str, what: str, including: Sequence[Path]) -> Path:
    """Return a file in the folder of the present file, else in the working directory.

    what: the contents, for messages.
    including: the open files; each includes the next.
    """
    if not name:
        raise DescriptorError(f"expected a file of {what}; got no name")
    folders = [*(file.parent for file in including[-1:]), Path()]
    paths = [folder / name for folder in folders]
    return next(filter(_is_file, paths), Path(name))


def text_of(path: Path, what: str) -> str:
    """Return the text of a file. Raises `DescriptorError` if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise DescriptorError(f"expected a file of {what}; got {error}") from None


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # the name is too long or not valid on the system
        return False
