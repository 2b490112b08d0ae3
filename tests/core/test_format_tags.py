"""The grammar of format tags, held against every name that oneDNN publishes."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dnncore.errors import DescriptorError
from dnncore.tensors.format_tags import ParsedTag, canonical_tag, parse_tag

# One published name a line: a letter tag, or `alias = letter tag`.
PUBLISHED = (Path(__file__).parents[1] / "data" / "format_tags.txt").read_text().splitlines()
LETTER_TAGS = [line for line in PUBLISHED if "=" not in line]
ALIASES = [tuple(line.split(" = ")) for line in PUBLISHED if "=" in line]


def rank(letter_tag):
    return len(re.findall("^[A-Za-z]+?(?=[0-9]|$)", letter_tag)[0])


def test_the_list_is_complete():
    assert len(LETTER_TAGS) == 514
    assert len(ALIASES) == 477


@pytest.mark.parametrize("tag", LETTER_TAGS)
def test_a_letter_tag_is_its_own_canonical_form(tag):
    assert canonical_tag(*parse_tag(tag, rank(tag))) == tag


@pytest.mark.parametrize(("alias", "tag"), ALIASES, ids=[alias for alias, _ in ALIASES])
def test_an_alias_means_what_it_aliases(alias, tag):
    assert parse_tag(alias, rank(tag)) == parse_tag(tag, rank(tag))


@pytest.mark.parametrize(
    ("tag", "order", "inner_blocks"),
    [
        ("a", (0,), ()),
        ("acdb", (0, 2, 3, 1), ()),
        ("nhwc", (0, 2, 3, 1), ()),
        ("hwigo", (3, 4, 2, 0, 1), ()),
        ("ldgoi", (0, 1, 3, 4, 2), ()),
        ("ntc", (1, 0, 2), ()),
        ("nChw16c", (0, 1, 2, 3), ((1, 16),)),
        ("ABcd8a16b2a", (0, 1, 2, 3), ((0, 8), (1, 16), (0, 2))),
        ("gIOhw16o16i", (0, 2, 1, 3, 4), ((1, 16), (2, 16))),
        ("hwioG16g", (3, 4, 2, 1, 0), ((0, 16),)),
    ],
)
def test_parsed_by_hand(tag, order, inner_blocks):
    assert parse_tag(tag, len(order)) == ParsedTag(order, inner_blocks)


@pytest.mark.parametrize(
    ("tag", "meaning"),
    [
        ("gIOhw2i8o16i2o", "aBCde2c8b16c2b"),
        ("gIOdhw2i8o16i2o", "aBCdef2c8b16c2b"),
        ("OhwI32o", "Acdb32a"),
        ("gOhwI32o", "aBdec32b"),
    ],
)
def test_irregular_aliases_mean_what_is_published(tag, meaning):
    assert canonical_tag(*parse_tag(tag, rank(meaning))) == meaning


@pytest.mark.parametrize(
    ("tag", "meaning"),
    [
        ("abx", "abcd"),
        ("axb", "acdb"),
        ("xba", "cdba"),
        ("aBx16b", "aBcd16b"),
        ("ABx4b16a4b", "ABcd4b16a4b"),
    ],
)
def test_x_stands_for_the_dims_that_are_not_named(tag, meaning):
    assert parse_tag(tag, 4) == parse_tag(meaning, 4)


def test_x_may_stand_for_no_dim_and_alone_names_a_vector():
    assert parse_tag("axb", 2) == parse_tag("ab", 2)
    assert parse_tag("x", 1) == parse_tag("a", 1)
    with pytest.raises(DescriptorError, match="2 dims need 2 letters"):
        parse_tag("x", 2)


@pytest.mark.parametrize("letters", ["tnc", "ncw", "goihw", "ldigo", "ldgo"])
@given(data=st.data())
def test_a_domain_tag_is_a_letter_tag_renamed(letters, data):
    ndims = len(letters)
    order = data.draw(st.permutations(range(ndims)))
    dim_and_size = st.tuples(st.integers(0, ndims - 1), st.integers(2, 64))
    blocks = tuple(data.draw(st.lists(dim_and_size, max_size=4)))
    letter_tag = canonical_tag(order, blocks)
    names = dict(zip("abcde", letters, strict=False))
    domain_tag = "".join(
        names[c.lower()].upper() if c.isupper() else names.get(c, c) for c in letter_tag
    )
    assert parse_tag(letter_tag, ndims) == parse_tag(domain_tag, ndims) == (tuple(order), blocks)


@pytest.mark.parametrize(
    ("tag", "ndims", "reason"),
    [
        ("any", 4, "pass it to MemoryDesc"),
        ("undef", 4, "pass it to MemoryDesc"),
        ("", 1, "a tag is one letter per dim"),
        ("16b", 1, "a tag is one letter per dim"),
        ("aBcd16", 4, "a tag is one letter per dim"),
        ("aBcd16B", 4, "a tag is one letter per dim"),
        ("ab cd", 4, "a tag is one letter per dim"),
        ("aBcd-16b", 4, "a tag is one letter per dim"),
        ("aBcd\u0661\u0666b", 4, "a tag is one letter per dim"),
        ("nchw", 3, "3 dims need 3 letters, as in abc; got 4"),
        ("abc", 4, "4 dims need 4 letters, as in abcd; got 3"),
        ("abcc", 4, r"got \['c'\] repeatedly"),
        ("abcC16c", 4, r"got \['c'\] repeatedly"),
        ("abce", 4, "must be abcd or those of a role; got abce"),
        ("nchz", 4, "the roles with 4 dims are: nchw, oihw, goiw, ldnc, ldio, ldgo"),
        ("nhwo", 4, "must be abcd or those of a role; got nhwo"),
        ("aXb", 3, "must be abc or those of a role"),
        ("abcd16b", 4, "upper-case: B; got 16b"),
        ("aBcd16e", 4, "upper-case: E; got 16e"),
        ("nChw16o", 4, "upper-case: O; got 16o"),
        ("aBcd", 4, r"needs a block; got none for \['b'\]"),
        ("ABcd16b", 4, r"needs a block; got none for \['a'\]"),
        ("aBcd0b", 4, "at least 2 elements; got 0b"),
        ("aBcd1b", 4, "at least 2 elements; got 1b"),
    ],
)
def test_nonsense_is_refused_with_the_rule(tag, ndims, reason):
    with pytest.raises(DescriptorError, match=reason) as caught:
        parse_tag(tag, ndims)
    assert repr(tag) in str(caught.value)


@given(st.text("abcdefnohwxABCNO0123456789", max_size=8), st.integers(1, 12))
def test_any_text_is_parsed_or_refused(text, ndims):
    try:
        order, blocks = parse_tag(text, ndims)
    except DescriptorError:
        return
    assert sorted(order) == list(range(ndims))
    assert parse_tag(canonical_tag(order, blocks), ndims) == (order, blocks)
