"""What was done to an item's history: each row that is not as it was written is found, and so are missing ones."""

from copy import deepcopy
from random import Random

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from streamfold import App, Key, Router
from streamfold.derivations.audit.history import Finding, behind, findings, item_as_of, moment
from streamfold.engines import EmbeddedEngine
from streamfold.records.values import decode
from streamfold.settings import Settings
from tests.helpers.histories import batches, random_steps, random_writes, records_of
from tests.helpers.history_rows import SECRET, lives, rows_of, states
from tests.helpers.records import image, item

OTHER = b"o" * 32


def problems(rows, key=SECRET):
    return [(finding.version, finding.problem) for finding in findings("ORDER#1|METADATA", rows, key)]


def signed(life, **options):
    return rows_of(states(life), key=SECRET, **options)


LIFE = [(0, {"a": 1, "email": "x"}), (1, {"a": 2, "email": "x"}), (1, {"a": 3}), (1, None), (1, {"a": 1, "email": "x"})]


@given(life=lives(), unchanged=st.booleans(), fields=st.sampled_from([None, ["a"]]))
def test_an_honest_history_is_found_honest_whatever_it_leaves_out(life, unchanged, fields):
    assert problems(signed(life, redact=["d"], unchanged=unchanged, fields=fields)) == []


@given(life=lives(), data=st.data())
def test_rows_that_are_missing_inside_are_found_unless_they_cancel_out(life, data):
    rows, images = signed(life), [None, *(image for _, image in states(life))]
    assume(len(rows) > 2)
    first = data.draw(st.integers(1, len(rows) - 2))
    behind = data.draw(st.integers(first + 1, len(rows) - 1))
    found = problems(rows[:first] + rows[behind:])
    assert found == ([] if images[first] == images[behind] else [(rows[behind]["version"], "gap")])


@given(life=lives(), data=st.data())
def test_each_single_row_that_is_missing_inside_is_found(life, data):
    rows = signed(life)
    assume(len(rows) > 2)
    missing = data.draw(st.integers(1, len(rows) - 2))
    assert problems(rows[:missing] + rows[missing + 1 :]) == [(rows[missing + 1]["version"], "gap")]


def another(value):
    return "another" if value != "another" else "other"


def edits(row):
    """The row with each of its attributes changed, taken away, and with one more; and each digest likewise."""
    for name in row:
        yield {**row, name: another(row[name])}
        yield {other: value for other, value in row.items() if other != name}
    yield {**row, "more": 1}
    for side in row["digests"]:
        yield {**row, "digests": {**row["digests"], side: another(None)}}
        yield {**row, "digests": {other: value for other, value in row["digests"].items() if other != side}}
    changes = deepcopy(row["changes"])
    for entry in changes.values():
        entry["new"] = another(entry.get("new"))
    if changes:
        yield {**row, "changes": changes}


@given(life=lives(), data=st.data())
def test_each_row_that_was_edited_is_found(life, data):
    rows = signed(life)
    assume(rows)
    place = data.draw(st.integers(0, len(rows) - 1))
    for edited in edits(rows[place]):
        problem = "forged" if isinstance(edited.get("digests"), dict) else "unsigned"
        assert (str(edited.get("version")), problem) in problems([*rows[:place], edited, *rows[place + 1 :]])


def test_a_row_in_another_place_is_found():
    first, second, *rest = signed(LIFE)
    moved = {**first, "SK": second["SK"], "version": second["version"]}
    assert problems([first, moved, *rest])[0] == (second["version"], "forged")


def test_rows_are_found_wrong_where_they_are():
    rows = signed(LIFE)
    rows[1] = {**rows[1], "actor": "nobody"}
    del rows[2]
    assert problems(rows) == [(rows[1]["version"], "forged"), (rows[2]["version"], "gap")]


def test_a_row_without_digests_is_found_and_the_chain_begins_again_behind_it():
    rows, plain = signed(LIFE), rows_of(states(LIFE))
    assert problems([*rows[:2], plain[2], *rows[3:]]) == [(rows[2]["version"], "unsigned")]
    assert [problem for _, problem in problems(plain)] == ["unsigned"] * 5


def test_rows_under_another_key_are_not_taken_for_honest():
    assert [problem for _, problem in problems(signed(LIFE), OTHER)] == ["forged"] * 5


def test_rows_that_expire_may_go_in_any_order():
    rows = signed(LIFE)
    del rows[1]
    assert [problem for _, problem in problems(rows)] == ["gap"]
    assert list(findings("ORDER#1|METADATA", rows, SECRET, lambda row: row is rows[0])) == []
    assert len(list(findings("ORDER#1|METADATA", rows, SECRET, lambda row: row is rows[1]))) == 1


def test_what_no_walk_can_find_is_not_found():
    rows = signed(LIFE)
    assert problems(rows[:3]) == problems(rows[2:]) == problems([rows[0]]) == problems([]) == []
    cancelling = [rows[0], *signed([*LIFE, (1, {"a": 9})])[5:]]
    assert problems(cancelling) == []  # the item came back to what it was: the four rows between are not missed


@given(life=lives(), missing=st.integers(0, 3))
def test_rows_that_are_missing_at_the_end_are_found_beside_the_item_itself(life, missing):
    rows, images = signed(life), [image for _, image in states(life)]
    assume(len(rows) > missing)
    kept = rows[: len(rows) - missing]
    now = image(None if images[-1] is None else item("ORDER#1", **images[-1]))
    found = behind("ORDER#1|METADATA", kept, SECRET, "main", now)
    assert (found is None) == (images[-1] == images[len(kept) - 1])
    assert found is None or (found.version, found.problem) == (kept[-1]["version"], "behind")


def test_without_a_signed_row_there_is_nothing_to_compare():
    assert behind("ORDER#1|METADATA", [], SECRET, "main", image(None)) is None
    assert behind("ORDER#1|METADATA", rows_of(states(LIFE)), SECRET, "main", image(None)) is None


def test_a_finding_says_what_it_means():
    finding = Finding("ORDER#1|METADATA", "00/label/7", "gap")
    assert str(finding).startswith("ORDER#1 METADATA  00/label/7  gap: the row does not begin with the item as the row")


def test_digests_tell_nothing_of_redacted_values():
    one, other = (signed([(0, {"email": email})], redact=["email"])[0] for email in ("a", "b"))
    assert one["changes"] == other["changes"]
    assert one["digests"]["new"] != other["digests"]["new"]


ITEM = Key("{kind}#{id}", "{part:rest}")


@pytest.mark.parametrize("seed", range(5))
def test_a_record_that_comes_again_or_days_later_keeps_the_history_honest(seed):
    router = Router()
    router.audit(ITEM, redact=["email"], into=Key("AUDIT#{item:rest}", "{version:rest}"))
    app = App("shop", routers=[router])
    engine, random = EmbeddedEngine(app.tables.values()), Random(seed)
    records = records_of(random_writes(random, 60))
    settings = Settings(audit_key=SECRET)
    late = set(random.sample(range(len(records)), 8))
    in_time = [record for number, record in enumerate(records) if number not in late]
    for batch in batches(in_time, random_steps(random, 9)):
        assert app.process(batch, engine=engine, settings=settings) == []
    found = histories(engine, app)
    assert any(problem == "gap" for rows in found.values() for _, problem in problems(rows))
    redriven = [records[number] for number in late] * 2
    random.shuffle(redriven)
    assert app.process(redriven, engine=engine, settings=settings) == []
    found = histories(engine, app)
    assert sum(map(len, found.values())) == len(records)
    assert [problem for rows in found.values() for problem in problems(rows)] == []


def histories(engine, app):
    """The rows of all items, sorted by version."""
    found = {}
    for stored in engine.items(app.tables["main"]):
        row = {name: decode(value) for name, value in stored.items()}
        found.setdefault(row["PK"], []).append(row)
    return found


def test_an_edit_that_a_reader_would_believe_is_found():
    rows = signed(LIFE)
    believed = deepcopy(rows)
    believed[0]["changes"]["a"]["new"] = 1000
    at = moment(rows[0]["at"])
    assert item_as_of(believed, at, {}).item == {"a": 1000, "email": "x"}
    assert problems(believed) == [(rows[0]["version"], "forged")]
