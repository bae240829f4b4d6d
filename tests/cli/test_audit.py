"""``streamfold audit verify``: what was done to histories is found, and what cannot be found is said."""

import json
import sqlite3
from contextlib import closing

import pytest

STATE = ("--state", "state.db")
APP = """
from streamfold import App, Key, Router

router = Router()
router.audit(Key("ORDER#{order_id}", "METADATA"), name="audit")
router.audit(Key("LINE#{order_id}", "{sku:rest}"), into=Key("LINES#{order_id}", "{version}#{sku:rest}"), name="lines")
app = App("shop", routers=[router])
"""
EXPIRING = """
from streamfold import App, Key, Router, Table

router = Router()
router.audit(Key("ORDER#{order_id}", "METADATA", table=Table("main", ttl="expires")), keep_days=1, name="audit")
app = App("shop", routers=[router])
"""
SECRET = "k" * 32


@pytest.fixture
def state(folder, source, monkeypatch):
    """A folder with the histories of three orders and two lines, four changes each."""
    folder.app(APP)
    monkeypatch.setenv("STREAMFOLD_AUDIT_KEY", SECRET)
    keys = [("ORDER#1", "METADATA"), ("ORDER#2", "METADATA"), ("ORDER#3", "METADATA"), ("LINE#1", "a"), ("LINE#1", "b")]
    records = [source.put(*key, n=number) for number in range(4) for key in keys]
    assert folder.run("replay", folder.records(*records), *STATE).code == 0
    return folder


def edit(folder, partition, number, change=None):
    """Changes a stored row behind the back of everybody, or removes it."""
    with closing(sqlite3.connect(folder.path / "state.db")) as connection, connection:
        query = "SELECT pk, sk, item FROM items WHERE json_extract(item, '$.PK.S') = ? ORDER BY sk"
        *place, text = connection.execute(query, (partition,)).fetchall()[number]
        if change is None:
            connection.execute("DELETE FROM items WHERE pk = ? AND sk = ?", place)
        else:
            edited = json.dumps(change(json.loads(text)))
            connection.execute("UPDATE items SET item = ? WHERE pk = ? AND sk = ?", (edited, *place))


def verified(folder, *arguments):
    ran = folder.run("audit", "verify", *arguments, *STATE, "--json")
    found = json.loads(ran.out)
    assert ran.code == bool(found["findings"])
    return [(finding["item"], finding["problem"]) for finding in found["findings"]], found


def test_honest_histories_have_no_findings(state):
    found, told = verified(state, "--all")

    assert found == []
    assert (told["items"], told["rows"], told["problems"]) == (5, 20, {})
    assert told["not_found"][0] == "rows that are missing at the end of a history"


def test_the_history_of_one_item_is_checked(state):
    found, told = verified(state, "LINE#1", "b")

    assert (found, told["items"], told["rows"]) == ([], 1, 4)


def test_a_row_that_was_edited_and_a_row_that_is_missing_are_found_where_they_are(state):
    edit(state, "AUDIT#ORDER#2|METADATA", 1, lambda row: row | {"event": {"S": "INSERT"}})
    edit(state, "LINES#1", 3)  # the second change of line b

    found, told = verified(state, "--all")

    assert found == [("ORDER#2|METADATA", "forged"), ("LINE#1|b", "gap")]
    assert told["problems"] == {"forged": 1, "gap": 1}
    assert verified(state, "ORDER#1", "METADATA")[0] == []
    assert verified(state, "--all", "--handler", "lines")[0] == [("LINE#1|b", "gap")]


def test_rows_that_are_missing_at_the_end_are_found_beside_the_items_themselves(state, source):
    edit(state, "AUDIT#ORDER#2|METADATA", 3)
    edit(state, "AUDIT#ORDER#3|METADATA", 3, lambda row: {name: row[name] for name in row if name != "digests"})

    assert verified(state, "--all")[0] == [("ORDER#3|METADATA", "unsigned")]
    found, told = verified(state, "--all", "--source")
    assert found == [("ORDER#2|METADATA", "behind"), ("ORDER#3|METADATA", "unsigned")]
    assert told["not_found"][0] == (
        "rows that are missing at its beginning, or behind one that has expired or that opens a history"
    )
    assert verified(state, "ORDER#2", "METADATA", "--source")[0] == [("ORDER#2|METADATA", "behind")]
    assert verified(state, "LINE#1", "a", "--source")[0] == []


def test_rows_that_have_expired_may_be_gone(state, source, monkeypatch):
    state.app(EXPIRING)
    state.run("replay", state.records(*[source.put("ORDER#7", n=number) for number in range(3)]), *STATE, "--fresh")
    edit(state, "AUDIT#ORDER#7|METADATA", 1)

    for seconds, found in ((-1, [("ORDER#7|METADATA", "gap")]), (0, [])):
        monkeypatch.setattr("streamfold.cli.history.now", lambda late=seconds: 1_772_355_600 + 24 * 60 * 60 + late)
        assert verified(state, "ORDER#7", "METADATA")[0] == found


def test_an_item_that_is_gone_is_as_its_last_row_left_it(state, source):
    state.run("replay", state.records(source.remove("ORDER#2")), *STATE)

    assert verified(state, "--all", "--source")[0] == []
    edit(state, "AUDIT#ORDER#2|METADATA", -1)
    assert verified(state, "--all", "--source")[0] == [("ORDER#2|METADATA", "behind")]


def test_an_item_whose_name_does_not_tell_its_key_is_not_compared(state, source):
    long = "ORDER#" + "x" * 2000
    state.run("replay", state.records(source.put(long, n=1), source.put(long, n=2)), *STATE)

    found, told = verified(state, "--all", "--source")
    assert (found, told["items"]) == ([], 6)
    assert verified(state, long, "METADATA", "--source")[0] == []


def test_findings_for_a_person_say_what_they_mean_and_what_cannot_be_found(state):
    edit(state, "AUDIT#ORDER#2|METADATA", 1)

    ran = state.run("audit", "verify", "--all", *STATE)

    assert ran.code == 1
    finding, summary, not_found = ran.out.splitlines()
    assert finding.startswith("ORDER#2 METADATA  00/2026-03-01T09:00:00.000/")
    assert "gap: the row does not begin with the item as the row before left it" in finding
    assert summary == "5 items, 19 rows: 1 gap."
    assert not_found.startswith("Not found in this way: rows that are missing at the end of a history")


def test_findings_beyond_a_number_are_only_counted(state, monkeypatch):
    monkeypatch.setattr("streamfold.cli.history.FINDINGS_KEPT_MAX", 3)
    monkeypatch.setenv("STREAMFOLD_AUDIT_KEY", "o" * 32)

    lines = state.run("audit", "verify", "--all", *STATE).out.splitlines()

    assert lines[3:6] == [
        "... and 17 more.",
        "5 items, 20 rows: 20 forged.",
        "Every row is called forged: is STREAMFOLD_AUDIT_KEY the key that they were written with?",
    ]


def test_rows_from_before_there_was_a_key_are_found_unless_they_are_left_out(folder, source, monkeypatch):
    folder.app(APP)
    first, second = source.put("ORDER#1", n=1), source.put("ORDER#1", n=2)
    second["dynamodb"]["ApproximateCreationDateTime"] += 60
    folder.run("replay", folder.records(first), *STATE)
    monkeypatch.setenv("STREAMFOLD_AUDIT_KEY", SECRET)
    folder.run("replay", folder.records(second), *STATE)

    assert verified(folder, "--all")[0] == [("ORDER#1|METADATA", "unsigned")]
    assert verified(folder, "--all", "--since", "2026-03-01T09:00:01Z")[0] == []


def test_without_the_key_nothing_is_checked(state, monkeypatch):
    monkeypatch.delenv("STREAMFOLD_AUDIT_KEY")

    ran = state.run("audit", "verify", "--all", *STATE)

    assert ran.code == 2
    assert "STREAMFOLD_AUDIT_KEY is not set: without the key that the rows were written with, nothing can be" in ran.err
    assert "Rows that are written without a key carry no digests." in ran.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "Say which histories: PARTITION and SORT of one item, or --all."),
        (("ORDER#1", "METADATA", "--all"), "Say which histories: PARTITION and SORT of one item, or --all."),
        (("ORDER#9", "METADATA"), "Item ORDER#9 METADATA has no history: nothing was recorded, or all of it is gone."),
        (("ORDER#9", "X"), "No audit records the item ORDER#9 / X: expected PARTITION and SORT of ORDER#{order_id} "),
        (("--all", "--since", "noon"), "--since 'noon' is no time with a time zone: expected for example 2026-03-01T1"),
        (("--all", "--handler", "x"), "--handler 'x' is no audit of 'shop': expected audit, lines."),
    ],
)
def test_a_question_that_cannot_be_answered_is_refused_with_what_was_expected(state, arguments, message):
    ran = state.run("audit", "verify", *arguments, *STATE)

    assert ran.code == 2
    assert message in ran.err


def test_no_output_holds_the_key(state):
    for command in (("settings",), ("settings", "--json"), ("audit", "verify", "--all", *STATE), ("show", *STATE)):
        ran = state.run(*command)
        assert SECRET not in ran.out + ran.err


def test_verify_has_help(folder):
    ran = folder.run("audit", "verify", "--help")

    assert ran.code == 0
    assert ran.out.startswith("Usage: streamfold audit verify")
