"""Overlap and containment of templates, compared with all short texts."""

import re
from itertools import chain, product

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from streamfold.keys import field as language
from streamfold.keys.field import DIGITS, INTEGER, Atom, contains, literal, overlaps

A, HASH, DIGIT = Atom(frozenset("a")), Atom(frozenset("#")), Atom(DIGITS)
FIELD, REST = Atom(refused=frozenset("#"), repeat=True), Atom(repeat=True)
SIGN, DIGITS_MORE = Atom(frozenset("-"), optional=True), Atom(DIGITS, repeat=True)
EXPRESSIONS = {
    (A,): "a",
    (HASH,): "#",
    (DIGIT,): r"\d",
    (FIELD,): "[^#]+",
    (REST,): ".+",
    (SIGN,): "-?",
    (DIGITS_MORE,): r"\d+",
    INTEGER: r"(?:0|-?[1-9]\d*)",
}
TEXTS = ["".join(characters) for length in range(6) for characters in product("a#10-", repeat=length)]

parts = st.lists(st.sampled_from(list(EXPRESSIONS)), min_size=1, max_size=3).map(tuple)
languages: dict[tuple[tuple[Atom, ...], ...], frozenset[str]] = {}


def texts_of(parts):
    """All texts of up to five characters that belong to the parts, by Python's own regular expressions."""
    if parts not in languages:
        pattern = re.compile("".join(EXPRESSIONS[part] for part in parts))
        languages[parts] = frozenset(text for text in TEXTS if pattern.fullmatch(text))
    return languages[parts]


def atoms_of(parts):
    return tuple(chain.from_iterable(parts))


@pytest.mark.slow
@settings(max_examples=300)
@given(parts, parts)
@example(((FIELD,), (HASH,)), ((HASH,), (FIELD,)))
@example(((SIGN,), (DIGITS_MORE,)), ((DIGIT,),))
@example((INTEGER, INTEGER), ((DIGIT,), (DIGIT,)))
def test_two_languages_overlap_exactly_when_a_short_text_is_of_both(left, right):
    assert bool(texts_of(left) & texts_of(right)) == overlaps(atoms_of(left), atoms_of(right))


@pytest.mark.slow
@settings(max_examples=300)
@given(parts, parts)
@example(((REST,),), ((FIELD,), (HASH,)))
@example(((FIELD,),), ((A,), (A,), (FIELD,)))
@example((INTEGER,), ((DIGIT,), (DIGIT,)))
def test_a_language_contains_another_exactly_when_it_has_all_of_its_short_texts(outer, inner):
    assert (texts_of(inner) <= texts_of(outer)) == contains(atoms_of(outer), atoms_of(inner))


@given(parts)
def test_every_language_overlaps_and_contains_itself(one):
    assert overlaps(atoms_of(one), atoms_of(one))
    assert contains(atoms_of(one), atoms_of(one))


@pytest.mark.parametrize("text", ["", "ORDER#", "song#", "é#\N{CIRCLED DIGIT ONE}"])
def test_a_literal_contains_its_own_text_only(text):
    assert contains(literal(text), literal(text))
    assert not overlaps(literal(text), literal(text + "x"))


def test_a_character_that_no_template_names_is_thought_of():
    named = Atom(frozenset("ab"))
    assert not contains((named,), (FIELD,))
    assert contains((FIELD,), (named,))


def test_literals_that_begin_differently_are_told_apart_without_a_walk(monkeypatch):
    monkeypatch.setattr(language, "_walk", None)
    assert not overlaps((*literal("ORDER#"), FIELD), (*literal("ORDEAL#"), FIELD))
    assert not overlaps(literal("a#b"), literal("a#c"))
