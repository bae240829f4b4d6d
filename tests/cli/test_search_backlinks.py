"""Backlinks of searches that were lost: they are found, and put again by each command that reconciles items."""

import json
import sqlite3
from contextlib import closing

import pytest

APP = """
from streamfold import App, Document, Key, Lookup, Router

LINE, PRODUCT = Key("LINE#{line_id}", "X"), Key("PRODUCT#{product_id}", "META")
router = Router()


@router.search(LINE, to="lines", fields={"category": "keyword"}, lookup={"product": Lookup(PRODUCT)})
def lines(line, product):
    return Document(category=product["category"])


app = App("shop", routers=[router])
"""
STATE = ("--state", "state.db")
VERIFY = ("search", "verify", "lines", "--tolerance", "0", *STATE)
BACKLINKS = "pk LIKE 'refs#shop#lines#%'"


def changed(folder, statement):
    with closing(sqlite3.connect(folder.path / "state.db")) as connection, connection:
        return connection.execute(statement).fetchall()


@pytest.fixture
def lost(folder, source):
    """A state with a line whose backlink somebody deleted."""
    folder.app(APP)
    records = [source.put("PRODUCT#p", "META", category="tea"), source.put("LINE#1", "X", product_id="p")]
    assert folder.run("replay", folder.records(*records), *STATE).code == 0
    assert folder.run(*VERIFY).code == 0
    changed(folder, f"DELETE FROM state WHERE {BACKLINKS}")
    return folder


def test_a_search_without_a_backlink_is_found_and_named(lost):
    ran = lost.run(*VERIFY, "--json")
    assert ran.code == 1
    found = json.loads(ran.out)
    assert (found["without_backlink"], found["wrong"]) == (1, [{"what": "without backlink", "id": ""}])
    assert lost.run(*VERIFY, "--repair").code == 0
    assert lost.run(*VERIFY).code == 0


def test_a_lost_backlink_of_an_item_on_which_the_function_raises_is_found(lost):
    lost.app(APP.replace('product["category"]', 'product["colour"]'))
    found = json.loads(lost.run(*VERIFY, "--json").out)
    assert (found["failed"], found["without_backlink"]) == (1, 1)


@pytest.mark.parametrize(
    "command",
    [
        ("search", "verify", "lines", "--tolerance", "0", "--repair"),
        ("repair", "--key", "LINE#1", "X"),
        ("backfill", "lines"),
        ("search", "rebuild", "lines"),
    ],
)
def test_each_command_that_reconciles_puts_the_backlink_again(lost, source, command):
    assert lost.run(*command, *STATE).code == 0
    assert len(changed(lost, f"SELECT pk FROM state WHERE {BACKLINKS}")) == 1
    source.put("PRODUCT#p", "META", category="tea")
    assert lost.run("replay", lost.records(source.put("PRODUCT#p", "META", category="herbs")), *STATE).code == 0
    assert '"category":"herbs"' in lost.run("show", "--index", "lines", "--json", *STATE).out
