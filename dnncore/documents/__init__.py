"""The documents: where they are, and programs that write pages from docstrings."""

from __future__ import annotations

from pathlib import Path

__all__ = ["documents", "folder", "title"]


def folder() -> Path:
    """Return the folder with README.md, docs, examples and templates: of the wheel or checkout."""
    here = Path(__file__).parent
    installed = here / "files"  # the folder in pyproject.toml
    return installed if installed.is_dir() else here.parents[1]


def documents() -> dict[str, Path]:
    """Return the documents by their names, such as "readme" and "contract"."""
    paths = [*folder().glob("*.md"), *folder().glob("docs/*.md")]
    return {path.stem.lower(): path for path in sorted(paths)}


def title(document: Path) -> str:
    """Return the first heading of a document."""
    return document.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")
