"""Overlap and containment of templates, compared with all short texts."""

import re
from itertools import product

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from streamfold import language
from streamfold.language import DIGITS, Atom, contains, literal, overlaps

A, HASH, DIGIT = Atom(frozenset("a")), Atom(frozenset("#")), Atom(DIGITS)
FIELD, REST = Atom(refused=frozenset("#"), repeat=True), Atom(repeat=True)
SIGN, DIGITS_MORE = Atom(frozenset("-"), optional=True), Atom(DIGITS, repeat=True)
EXPRESSIONS = {A: "a", HASH: "#", DIGIT: r"\d", FIELD: "[^#]+", REST: ".+", SIGN: "-?", DIGITS_MORE: r"\d+"}
TEXTS = ["".join(characters) for length in range(7) for characters in product("a#1-", repeat=length)]

atoms = st.lists(st.sampled_from(list(EXPRESSIONS)), min_size=1, max_size=3).map(tuple)
languages: dict[tuple[Atom, ...], frozenset[str]] = {}


def texts_of(atoms):
    """All texts of up to six characters that belong to the atoms, by Python's own regular expressions."""
    if atoms not in languages:
        pattern = re.compile("".join(EXPRESSIONS[atom] for atom in atoms))
        languages[atoms] = frozenset(text for text in TEXTS if pattern.fullmatch(text))
    return languages[atoms]


@settings(max_examples=300)
@given(atoms, atoms)
@example((FIELD, HASH), (HASH, FIELD))
@example((SIGN, DIGITS_MORE), (DIGIT,))
def test_two_languages_overlap_exactly_when_a_short_text_is_of_both(left, right):
    assert bool(texts_of(left) & texts_of(right)) == overlaps(left, right)


@settings(max_examples=300)
@given(atoms, atoms)
@example((REST,), (FIELD, HASH))
@example((FIELD,), (A, A, FIELD))
def test_a_language_contains_another_exactly_when_it_has_all_of_its_short_texts(outer, inner):
    assert (texts_of(inner) <= texts_of(outer)) == contains(outer, inner)


@given(atoms)
def test_every_language_overlaps_and_contains_itself(one):
    assert overlaps(one, one)
    assert contains(one, one)


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
