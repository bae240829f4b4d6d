"""How finely the framework is cut, and in which words it is written: no figure of house.toml may grow."""

import ast
from itertools import chain

import pytest

from tests.tools import house_figures, house_structure, old_words, record_walk
from tests.tools.house_figures import ADVICE, MAXIMA, figures, grown, lowered, maxima, modules, tables

MADE = {
    "__init__.py": '"""A docstring alone is no module."""\n',
    "cli/show.py": """
from sys import (
    argv,
    path,
)


def show(store):
    if store.engine == "embedded" or isinstance(store.engine, MemoryEngine):
        return contribution(argv)
    return _rows(path), _rows(path)
""",
    "engines/__init__.py": """
class MemoryEngine:
    def _row_of(self, key):
        \"\"\"The row of a key.\"\"\"
        return self.rows[key]

    def read(self, key):
        \"\"\"Raises an error if somebody removed the table meanwhile.\"\"\"
        return self._row_of(key)
"""
    + "# a line\n" * 30,
    "derivations/view.py": "found = kind.contribution(1)\n",
}


@pytest.fixture(scope="module")
def today():
    return tables()


@pytest.mark.parametrize("table", maxima())
def test_nothing_grows_that_is_to_become_less(today, table):
    bounds = maxima()[table]
    assert bounds.keys() == today[table].keys(), f"{MAXIMA} has a maximum for each figure and each word"
    over = grown(today[table], bounds)
    assert not over, f"(today, at most): {over}. {ADVICE} python -m tests.tools.house_figures prints them all."


def test_a_figure_with_room_may_grow_a_little_and_others_may_not():
    bounds = {"lines": 1000, "modules": 1000}
    assert grown({"lines": 1010, "modules": 1000}, bounds) == {}
    assert grown({"lines": 1011, "modules": 1001}, bounds) == {"lines": (1011, 1010), "modules": (1001, 1000)}


def test_figures_count_what_they_say(tmp_path):
    for name, text in MADE.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text, "utf-8")
    assert figures(modules(tmp_path)) == {
        "modules": 3,
        "lines": sum(len(text.splitlines()) for text in MADE.values()),
        "lines of code": 14,
        "lines of imports": 4,
        "modules of commands": 1,
        "lines of commands": 11,
        "private functions with one caller, by name": 1,
        "private functions with one caller in their module": 1,
        "docstrings on private functions of one or two lines": 1,
        "docstrings on functions of one or two lines": 2,
        "docstrings that restate": 1,
        "calls of a handler's contribution": 1,
        "comparisons on an engine's type or name": 2,
        "functions of more than 40 lines": 0,
        "functions nested four deep or more": 0,
        "modules outside derivations that import a kind": 0,
    }


STRUCTURE = {
    "ledger/deltas.py": "delta = 1\n",
    "commit/plan.py": "from streamfold.ledger import deltas\n",
    "batch/order.py": "from datetime import timedelta\n",
    "cli/explain.py": "from streamfold.derivations.view.kind import View\n",
    "cli/search.py": "from streamfold.derivations.search import kind\n",
    "derivations/feed/kind.py": "from streamfold.derivations.view.kind import View\n",
    "cli/long.py": "def long():\n" + "    # a line\n" * 40 + "    return 1\n",
    "cli/deep.py": """
def deep():
    if one:
        for each in found:
            while each:
                with each:
                    \"\"\"Prose.\"\"\"
""",
}


def test_structure_is_counted_as_it_says(tmp_path):
    for name, text in STRUCTURE.items():
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).write_text(text, "utf-8")
    found = modules(tmp_path)
    assert house_structure.naming(found, house_structure.FEATURES["deltas"]) == ["commit/plan.py"]
    assert house_structure.kinds_outside(found) == ["cli/explain.py"]
    assert (house_structure.long_functions(found), house_structure.deep_functions(found)) == (1, 1)


NOT_USED = (
    *chain.from_iterable(feature.own for feature in house_structure.FEATURES.values()),
    "batch/fan_outs.py",
    "jobs/",
    *(f"derivations/{kind}/" for kind in house_structure.KINDS if kind != "view"),
)
"""What an application with one view and no option does not use."""


def test_a_feature_that_the_application_does_not_use_is_not_called():
    called = sorted({module for module in record_walk.walk() if module.startswith(NOT_USED)})
    assert not called, "a record of an application with one view passes through features that it does not use"


def test_a_circle_of_late_and_type_imports_is_found(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "round_house").mkdir()
    for name, text in {
        "__init__.py": "",
        "first.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from round_house import second\n",
        "second.py": "def late():\n    from round_house.first import it\n    return it\n",
        "third.py": "from round_house import first\n",
    }.items():
        (tmp_path / "round_house" / name).write_text(text, "utf-8")
    assert house_structure.circles("round_house") == [("round_house.first", "round_house.second")]


def test_a_maximum_is_lowered_and_never_raised(tmp_path, monkeypatch):
    monkeypatch.setattr(house_figures, "MAXIMA", tmp_path / "house.toml")
    house_figures.MAXIMA.write_text("# why\n", "utf-8")
    house_figures.MAXIMA.write_text(
        lowered({"figures": {"modules": 7, "lines": 3}}, {"figures": {"lines": 2}}), "utf-8"
    )
    assert maxima() == {"figures": {"modules": 7, "lines": 2}}
    assert house_figures.MAXIMA.read_text("utf-8").startswith("# why\n")


@pytest.mark.parametrize(
    ("word", "text", "found"),
    [
        ("tell", "# what is told", True),
        ("tell", "NOT_TOLD = 1", True),
        ("tell", "class ToldTwice: ...", True),
        ("tell", "# a toldo", False),
        ("place", "def place_of(key): ...", True),
        ("place", "f'{place}'", True),
        ("place", "'a place of its own'  # and another place", False),
        ("lane", "run(lanes=2)", True),
        ("lane", "'STREAMFOLD_LANES', settings.lanes, {\"lane\": 1}", False),
    ],
)
def test_a_word_is_found_in_names_and_where_it_is_no_plain_english_in_texts(word, text, found):
    assert old_words.counted([(text, ast.walk(ast.parse(text)))])[word] == found


def test_prose_is_looked_through_for_words_that_are_no_plain_english():
    counts = old_words.counted_in_prose(["It tells of a place.", "A place."])
    assert counts["tell"] == 1
    assert "place" not in counts


def test_no_new_word_is_an_old_one():
    """Words that names alone must not have may be in what is said instead."""
    instead = chain.from_iterable(word.instead.split(", ") for word in old_words.WORDS.values())
    everywhere = [word for word in old_words.WORDS.values() if not word.names_only]
    assert not [text for text in instead for word in everywhere if old_words.has(word, old_words.words_of(text))]
