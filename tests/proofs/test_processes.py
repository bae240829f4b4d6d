"""Handlers in processes of their own: what differs between processes is found where the application has a name."""

import sys
import textwrap
from importlib import import_module
from pathlib import Path

import pytest

from streamfold import App, Key, Router, Row
from streamfold.proofs.processes import Elsewhere, module_path_of
from streamfold.testing import NotDeterministic, check
from tests.helpers import everything

LINE = Key("ORDER#{order_id}", "LINE#{sku}")
ITEMS = {LINE: [{"p": n, "tags": ["red", "green", "blue", f"tag{n}"]} for n in (3, 2, 1)]}
MODULE = """
from streamfold import App, Key, Max, Router, Row

LINE = Key("ORDER#{{order_id}}", "LINE#{{sku}}")
CARD = Key("ORDER#{{order_id}}", "CARD#{{sku}}")
TOTAL = Key("ORDER#{{order_id}}", "TOTAL#{{bucket}}")
router = Router()

{handler}

app = App("shop", routers=[router])
"""
SET = """
@router.view(LINE, into=CARD)
def tagged(line):
    yield Row(tags=",".join({tag.upper() for tag in line["tags"]}))
"""
HASH = """
@router.view(LINE, into=TOTAL)
def hashed(line):
    yield Row(bucket=str(hash(line["tags"][0]) % 1000), greatest=Max(line["p"]))
"""
FIRST = """
class Memory:
    first = None

@router.view(LINE, into=CARD)
def relative(line):
    Memory.first = Memory.first or line["p"]
    yield Row(more=line["p"] - Memory.first)
"""
ZONE = """
from datetime import datetime, timezone

HERE = datetime.fromtimestamp(0, timezone.utc).astimezone().tzinfo

@router.view(LINE, into=CARD)
def of_the_day(line):
    yield Row(day=datetime.fromtimestamp(1772359200 + line["p"], HERE).hour)
"""
PURE = """
@router.view(LINE, into=CARD)
def tagged(line):
    yield Row(tags=set(line["tags"]), first=sorted(set(line["tags"]))[0])
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Writes a module with a handler, and imports it."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "planted_shop", raising=False)

    def make(handler):
        (tmp_path / "planted_shop.py").write_text(MODULE.format(handler=textwrap.dedent(handler)))
        return __import__("planted_shop")

    yield make
    sys.modules.pop("planted_shop", None)


def prove(module, **more):
    return check(module.app, {module.LINE: ITEMS[LINE]}, histories=2, **more)


@pytest.mark.parametrize("handler", [SET, HASH], ids=["set", "hash"])
def test_handler_that_goes_by_hashes_of_text_is_named_as_such(module, handler):
    with pytest.raises(NotDeterministic, match=r"in two processes it gives two results: .* order of a set"):
        prove(module(handler))


def test_handler_that_remembers_in_an_object_of_its_own_is_named_as_such(module):
    with pytest.raises(NotDeterministic, match=r"'relative'.* a new process gives another result"):
        prove(module(FIRST), processes=1)


@pytest.mark.parametrize("processes", [1, 2])
def test_zone_that_a_module_read_when_it_was_imported_is_found_elsewhere(module, processes):
    with pytest.raises(NotDeterministic, match=r"'of_the_day'.* time zone"):
        prove(module(ZONE), processes=processes)


def test_sets_that_are_sorted_or_stored_are_the_same_in_every_process(module):
    proof = prove(module(PURE))
    assert not [left for left in proof.left_out if left.startswith("other processes")]


def test_application_without_a_name_is_said_to_be_left_out():
    router = Router()

    @router.view(LINE, into=Key("ORDER#{order_id}", "CARD#{sku}"))
    def card(line):
        yield Row(price=line["p"])

    proof = check(App("shop", routers=[router]), ITEMS, histories=1)
    (left,) = [left for left in proof.left_out if left.startswith("other processes")]
    assert left.startswith("other processes, in which hash() and the order of sets differ: ")
    assert "no module has the application under a name" in left


def test_application_that_does_not_import_elsewhere_is_said_to_be_left_out_with_the_reason(module):
    made = module(PURE)
    with Path(made.__file__).open("a") as file:
        file.write("\nraise RuntimeError('not twice')\n")
    (left,) = [left for left in prove(made).left_out if left.startswith("other processes")]
    assert "RuntimeError: not twice" in left


def test_no_other_process_is_begun_where_none_is_asked_for(module):
    (left,) = [left for left in prove(module(SET), processes=0).left_out if left.startswith("other processes")]
    assert left.endswith("processes=0")


def test_module_path_of_an_application_is_where_it_is_declared():
    assert module_path_of(everything.app) == ("tests.helpers.everything", "app")
    assert module_path_of(App("shop", routers=[])) is None


def test_module_path_of_an_application_is_not_that_of_a_module_that_imports_it(module, tmp_path, monkeypatch):
    made = module(PURE)
    monkeypatch.delitem(sys.modules, "planted_test", raising=False)
    (tmp_path / "planted_test.py").write_text("from planted_shop import app\n")
    monkeypatch.setitem(sys.modules, "planted_test", import_module("planted_test"))
    assert module_path_of(made.app) == ("planted_shop", "app")
    sys.modules["planted_shop"] = sys.modules.pop("planted_shop")  # now its import began later than the other's
    assert module_path_of(made.app) == ("planted_shop", "app")


def test_process_that_takes_too_long_is_ended_and_said_to_be_left_out(module, monkeypatch):
    monkeypatch.setattr("streamfold.proofs.processes.SECONDS_MAX", 0)
    made = module(PURE)
    with Elsewhere(made.app, [], 1) as elsewhere:
        assert "within 0 seconds" in elsewhere.compare()[0]
        process = elsewhere.processes[0]
    assert process.poll() is not None
