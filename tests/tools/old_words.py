"""Words of an earlier dialect of this code, which are not to come back, and how often each is there still.

Where a word is plain English too, such as *place* or *left*, only names in the code count: functions, classes,
variables, parameters, attributes. Else the whole text counts: comments, docstrings and messages too. Settings, keys of
JSON and stored names keep the old words, because somebody relies on them: ``KEPT`` lists them.
"""

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

KEPT = re.compile(
    r"STREAMFOLD_(?:GATE_SECONDS|LANES|CHUNK_ACTIONS)|settings\.(?:lanes|gate_seconds|chunk_actions)"
    r"|--(?:lanes|ring|chunk-actions)\b|\"(?:lanes?|ring|gate_seconds|chunk_actions|contested)\"|\bgiven\.ring\b|\b(?:fan-out|open)_?lanes\b"
    r"|\blanes_(?:handed_over|failed|rung)\b"
)
"""Settings, options of commands, keys of JSON and names of metrics."""
PAGES_KEPT = ("changelog.md", "decisions")
"""They say what was."""
NAME_FIELDS = ("id", "attr", "name", "arg", "asname")
"""Where nodes of Python's syntax have names."""


class Word(NamedTuple):
    """An old word: its forms, and what is said instead."""

    forms: str  # with commas between them
    instead: str
    names_only: bool = False


WORDS = {
    "tell": Word("tell, tells, told, telling", "print, report, message, result; of errors: redacted, repr"),
    "say": Word("says, said", "a noun for what it is", names_only=True),
    "left": Word("left, unfinished", "pending, remaining", names_only=True),
    "forget": Word("forget, forgets, forgot, forgotten", "clear_pending", names_only=True),
    "settle": Word("settle, settles, settled, settling", "already applied; acknowledge; recheck"),
    "hear": Word("hear, hears, heard, hearing, listen, listens, listening", "subscribes, Subscription"),
    "bear": Word("bear, bears, bearing", "has, derived attributes"),
    "due": Word("due", "pending update", names_only=True),
    "form": Word("form, forms, making", "stored schema, aggregation, RowBuilder", names_only=True),
    "lead": Word("lead, leads, led, leading", "reconcile, correct", names_only=True),
    "mend": Word("mend, mends, mended, mending", "reconcile, correct"),
    "place": Word("place, places", "sort position, cursor, location, module path, key columns", names_only=True),
    "part": Word("part, parts", "contribution, key component, segment, file, document part", names_only=True),
    "moved": Word("moved", "changed entries", names_only=True),
    "stays": Word("stays", "requires a contributor", names_only=True),
    "fits": Word("fits", "size checked", names_only=True),
    "least": Word("least", "minimum of contributors", names_only=True),
    "alone": Word("alone", "sole writer", names_only=True),
    "contested": Word("contested", "multi-source"),
    "whole": Word("whole", "replace", names_only=True),
    "chunk": Word("chunk, chunks", "transaction"),
    "lane": Word("lane, lanes", "call slot, segment"),
    "ring": Word("ring, rings, rung, ringing, bell, bells, doorbell, doorbells", "enqueue, queue"),
    "filling": Word("filling", "backfill"),
    "sweep": Word("sweep, sweeps, swept, sweeping", "orphan scan"),
    "gate": Word("gate, gates", "deployment delay"),
    "opening": Word("opening", "initial history", names_only=True),
    "casts": Word("casts", "expression cache", names_only=True),
    "bodies": Word("bodies", "request encoding", names_only=True),
    "answers": Word("answers", "responses", names_only=True),
    "stand-in": Word("stand in, standin", "synthetic change", names_only=True),
    "mirror": Word("mirror, mirrors, mirrored", "stored copy"),
    "pair": Word("pair, pairs", "post and edge", names_only=True),
    "circle": Word("circle, circles", "second round"),
    "stands": Word("stands", "is"),
    "comes again": Word("come again, comes again, came again, coming again", "is redelivered, is retried"),
    "whoever": Word("whoever, whomever", "the caller, the process"),
}


def pages(folder: Path) -> Iterator[str]:
    for path in sorted(folder.rglob("*.md")):
        if not set(path.relative_to(folder).parts) & set(PAGES_KEPT):
            yield path.read_text("utf-8")


def counted_in_prose(texts: Iterable[str]) -> dict[str, int]:
    """In how many texts each word is that is looked for everywhere."""
    words = [words_of(KEPT.sub(" ", text)) for text in texts]
    return {name: sum(has(word, each) for each in words) for name, word in WORDS.items() if not word.names_only}


def counted(modules: Iterable[tuple[str, Iterable[ast.AST]]]) -> dict[str, int]:
    """In how many modules each word is; a module is its text and its nodes."""
    counts = dict.fromkeys(WORDS, 0)
    for text, nodes in modules:
        words, names = words_of(KEPT.sub(" ", text)), words_of(" ".join(set(names_of(nodes))))
        for name, word in WORDS.items():
            counts[name] += has(word, names if word.names_only else words)
    return counts


def has(word: Word, words: str) -> bool:
    return any(f" {form} " in words for form in word.forms.split(", "))


def words_of(text: str) -> str:
    """The words of a text with a space around each, those of a name too: ``NOT_TOLD``, ``ToldTwice``."""
    spaced = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", text).lower()
    return f" {' '.join(re.findall('[a-z]+(?:-[a-z]+)*', spaced))} "


def names_of(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """The names that a module gives or reads; those in f-strings too, and no text."""
    for node in nodes:
        for field in NAME_FIELDS:
            if isinstance(name := getattr(node, field, None), str):
                yield name
