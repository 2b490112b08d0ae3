"""Format tags: short names of memory layouts. They are parsed; there is no table of all tags.

A tag lists the dims of a tensor in the order of memory, outermost first. In a *letter tag* `a`
means dim 0, `b` dim 1 and so on: in `acdb`, dim 1 is innermost. An upper-case letter marks a dim
that is also split into blocks, and the blocks follow as `<size><letter>`, outermost first:
`ABcd8a16b2a` is a/16, b/16, c, d, then 8 of a, 16 of b, 2 of a.

A *domain tag* uses the letters of a role instead: `nchw` for activations, `gOIhw16i16o` for
grouped weights, `ldigo` for recurrent weights. Each set of letters has one logical order of dims,
which `_LOGICAL_ORDERS` lists. So a domain tag is a letter tag with other letters, and its letters
may be in any order: `nhcw` is `acbd`.

In a *rank-free tag*, `x` means all dims that the tag does not name. For 4 dims, `abx` is `abcd`,
`axb` is `acdb` and `aBx16b` is `aBcd16b`. Dims that a tensor lacks are omitted: for 1 dim, all
three are `a`.

`any` (an implementation selects the layout) and `undef` (no layout) are not tags. `MemoryDesc`
handles them separately.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from dnncore.errors import DescriptorError

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["MAX_NDIMS", "ParsedTag", "canonical_tag", "parse_tag"]

MAX_NDIMS = 12
_LETTERS = "abcdefghijkl"
assert len(_LETTERS) == MAX_NDIMS

_SPATIAL = ("", "w", "hw", "dhw")
_LOGICAL_ORDERS = (
    "x",  # vectors: bias, scale, shift, statistics
    *("nc" + spatial for spatial in _SPATIAL),  # activations
    *("oi" + spatial for spatial in _SPATIAL),  # weights
    *("goi" + spatial for spatial in _SPATIAL[1:]),  # weights of a grouped convolution
    "tn",  # RNN: statistics
    "tnc",  # RNN: data of the layers
    "ldnc",  # RNN: states
    "ldigo",  # RNN: weights
    "ldio",  # RNN: projection
    "ldgo",  # RNN: bias
)
_LOGICAL_ORDER_OF = {frozenset(order): order for order in _LOGICAL_ORDERS}

# oneDNN publishes these four aliases; their values differ from what their letters mean.
_IRREGULAR = {
    "gIOhw2i8o16i2o": "aBCde2c8b16c2b",
    "gIOdhw2i8o16i2o": "aBCdef2c8b16c2b",
    "OhwI32o": "Acdb32a",
    "gOhwI32o": "aBdec32b",
}

_TAG = re.compile(r"(?P<outer>[A-Za-z]+)(?P<blocks>(?:[0-9]{1,18}[a-z])*)")
_BLOCK = re.compile(r"([0-9]+)([a-z])")


class ParsedTag(NamedTuple):
    """A parsed tag: the dims outermost to innermost, then (dim, size) per inner block."""

    order: tuple[int, ...]
    inner_blocks: tuple[tuple[int, int], ...]


@lru_cache(maxsize=4096)
def parse_tag(tag: str, ndims: int) -> ParsedTag:
    """Return the order of dims and the inner blocks that `tag` means for `ndims` dims.

    Accepts letter, domain and rank-free tags. Raises `DescriptorError` for anything else,
    and for a tag of another rank.
    """
    if tag in ("any", "undef"):
        _refuse(tag, "this is not the tag of a layout; pass it to MemoryDesc instead")
    match = _TAG.fullmatch(_IRREGULAR.get(tag, tag))
    if match is None:
        _refuse(tag, "a tag is one letter per dim, then blocks of a size and a letter: aBcd16b")
    outer = match["outer"]
    blocks = [(letter, int(size)) for size, letter in _BLOCK.findall(match["blocks"])]
    if _is_rank_free(outer):
        outer = _fill_in_rest(outer, ndims)
        blocks = [block for block in blocks if block[0] not in _LETTERS[ndims:]]
    _check_letters(tag, outer, ndims)
    _check_blocks(tag, outer, blocks)
    dim_of = {letter: dim for dim, letter in enumerate(_logical_order(outer))}
    return ParsedTag(
        tuple(dim_of[letter] for letter in outer.lower()),
        tuple((dim_of[letter], size) for letter, size in blocks),
    )


def canonical_tag(order: Iterable[int], inner_blocks: Iterable[tuple[int, int]] = ()) -> str:
    """Return the letter tag of dims in `order`, outermost first, and blocks of (dim, size)."""
    blocks = tuple(inner_blocks)
    split = {dim for dim, _ in blocks}
    outer = (_LETTERS[dim].upper() if dim in split else _LETTERS[dim] for dim in order)
    return "".join(outer) + "".join(f"{size}{_LETTERS[dim]}" for dim, size in blocks)


def _is_rank_free(outer: str) -> bool:
    """Whether `x` means other dims. The tag `x` alone is the domain tag of vectors."""
    return outer != "x" and outer.count("x") == 1


def _fill_in_rest(outer: str, ndims: int) -> str:
    """Replace `x` by the letters of all dims that `outer` does not name; drop dims past `ndims`."""
    rest = "".join(letter for letter in _LETTERS[:ndims] if letter not in outer.lower())
    return "".join(c for c in outer if c.lower() not in _LETTERS[ndims:]).replace("x", rest)


def _check_letters(tag: str, outer: str, ndims: int) -> None:
    letters = outer.lower()
    repeated = sorted({letter for letter in letters if letters.count(letter) > 1})
    if repeated:
        _refuse(tag, f"each dim has one letter before the blocks; got {repeated} repeatedly")
    first = _LETTERS[:ndims]
    if len(letters) != ndims:
        meant = "" if letters in tag.lower() else f", since {tag!r} means {letters!r}"
        _refuse(tag, f"{ndims} dims need {ndims} letters, as in {first}; got {len(letters)}{meant}")
    if frozenset(letters) not in (frozenset(first), *_LOGICAL_ORDER_OF):
        roles = ", ".join(order for order in _LOGICAL_ORDERS if len(order) == ndims) or "none"
        _refuse(
            tag,
            f"the letters of {ndims} dims must be {first} or those of a role; got {letters}; "
            f"the roles with {ndims} dims are: {roles}",
        )


def _check_blocks(tag: str, outer: str, blocks: list[tuple[str, int]]) -> None:
    split = {letter.lower() for letter in outer if letter.isupper()}
    for letter, size in blocks:
        if letter not in split:
            _refuse(tag, f"a dim with a block is upper-case: {letter.upper()}; got {size}{letter}")
        if size < 2:
            _refuse(tag, f"a block has at least 2 elements; got {size}{letter}; leave it out")
    if unsplit := sorted(split - {letter for letter, _ in blocks}):
        _refuse(tag, f"an upper-case dim needs a block; got none for {unsplit}; use lower case")


def _logical_order(outer: str) -> str:
    """Return the letters of `outer`, each replaced by the letter of its logical dim."""
    letters = frozenset(outer.lower())
    return _LOGICAL_ORDER_OF.get(letters, _LETTERS[: len(letters)])


def _refuse(tag: str, reason: str) -> NoReturn:
    raise DescriptorError(f"format tag {tag!r}: {reason}")
