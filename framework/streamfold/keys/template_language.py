"""Which key texts a template stands for, compared exactly: whether two overlap, whether one holds the other.

A part of a template is a sequence of *atoms*: a literal character, a class of characters once, or a class once or
more. That is a small finite automaton, whose one alternative is a jump over what follows; so intersection and
containment are decided by walking two of them side by side over one representative of every kind of character.
"""

from collections.abc import Callable, Iterable
from typing import NamedTuple

DIGITS = frozenset("0123456789")


class Atom(NamedTuple):
    """One character of ``allowed``, or any character but those ``refused`` when ``allowed`` is None.

    With ``repeat`` it stands for one or more of them, with ``optional`` for one or none, with both for any number.
    ``leads`` says how many atoms on its character leads: 1 is the next.
    """

    allowed: frozenset[str] | None = None
    refused: frozenset[str] = frozenset()
    repeat: bool = False
    optional: bool = False
    leads: int = 1

    def takes(self, character: str) -> bool:
        if self.allowed is not None:
            return character in self.allowed
        return character not in self.refused


Atoms = tuple[Atom, ...]
States = frozenset[int]

INTEGER: Atoms = (
    Atom(frozenset("0"), optional=True, leads=4),
    Atom(frozenset("-"), optional=True),
    Atom(DIGITS - {"0"}),
    Atom(DIGITS, repeat=True, optional=True),
)
"""A whole number as ``str`` writes it: 0, or digits that begin with another, with or without a sign."""


def literal(text: str) -> Atoms:
    """The atoms of a text that stands for itself."""
    return tuple(Atom(frozenset(character)) for character in text)


def overlaps(left: Atoms, right: Atoms) -> bool:
    """Whether some text belongs to both."""
    if left == right:  # the target of one handler and the source of another, without a walk
        return True
    if _begin_differently(left, right):
        return False
    return _walk(left, right, lambda in_left, in_right: in_left and in_right)


def contains(outer: Atoms, inner: Atoms) -> bool:
    """Whether every text of ``inner`` belongs to ``outer``."""
    if outer == inner:
        return True
    if _begin_differently(outer, inner):
        return False
    return not _walk(inner, outer, lambda in_inner, in_outer: in_inner and not in_outer)


def _begin_differently(left: Atoms, right: Atoms) -> bool:
    """Whether the literals that both begin with differ: true of most pairs, and seen without a walk."""
    for one, other in zip(left, right, strict=False):
        if not (_is_literal(one) and _is_literal(other)):
            return False
        if one != other:
            return True
    return False


def _is_literal(atom: Atom) -> bool:
    return atom.allowed is not None and len(atom.allowed) == 1 and not (atom.repeat or atom.optional)


def _walk(left: Atoms, right: Atoms, found: Callable[[bool, bool], bool]) -> bool:
    """Whether some text leads both automata to a pair of answers that ``found`` accepts."""
    alphabet = _alphabet(left + right)
    start = (_closure(left, {0}), _closure(right, {0}))
    seen, waiting = {start}, [start]
    while waiting:  # bounded by the pairs of state sets of two short templates
        states = waiting.pop()
        if found(len(left) in states[0], len(right) in states[1]):
            return True
        for character in alphabet:
            following = (_step(left, states[0], character), _step(right, states[1], character))
            if following not in seen and following[0]:
                seen.add(following)
                waiting.append(following)
    return False


def _alphabet(atoms: Atoms) -> list[str]:
    """Every character that is named, and one that is named nowhere."""
    named = set().union(*((atom.allowed or atom.refused) for atom in atoms)) if atoms else set()
    other = next(chr(code) for code in range(0x2460, 0x2460 + len(named) + 1) if chr(code) not in named)
    return [*sorted(named), other]


def _closure(atoms: Atoms, states: Iterable[int]) -> States:
    """These states, and those that optional atoms let follow from them without a character."""
    reached: set[int] = set()
    waiting = list(states)
    while waiting:
        state = waiting.pop()
        reached.add(state)
        if state < len(atoms) and atoms[state].optional:
            waiting.append(state + 1)
    return frozenset(reached)


def _step(atoms: Atoms, states: States, character: str) -> States:
    following = set()
    for state in states:
        if state < len(atoms) and atoms[state].takes(character):
            following.add(state + atoms[state].leads)
            if atoms[state].repeat:
                following.add(state)
    return _closure(atoms, following)
