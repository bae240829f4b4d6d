"""``streamfold restore``: rows of a restored table are derived again into an empty state, and nothing else changes."""

import json

import pytest

from tests.helpers import restored
from tests.helpers.source import Source
from tests.helpers.tables import make_table


@pytest.fixture
def shop(on_aws, folder, monkeypatch):
    """A table that went on after its backup, and the restored table with an empty state."""
    client, keys = on_aws.client, {"PK": "S", "SK": "S"}
    folder.app(restored.CODE)
    for name in ("restored", "anew"):
        make_table(client, name, keys)
    for name in ("state-2", "state-3"):
        make_table(client, name, {"pk": "S", "sk": "S"})
    first, later = restored.written(Source())
    app = folder.load()
    restored.derive(app, client, "shop", "shop-state", first)
    restored.derive(app, client, "shop", "shop-state", later)
    restored.copy_restored(client, "shop", "restored", first, later)
    restored.derive(app, client, "anew", "state-3", first)
    monkeypatch.setenv("STREAMFOLD_STATE_TABLE", "state-2")
    monkeypatch.setenv("STREAMFOLD_TABLE_MAIN", "restored")
    return on_aws


def run(shop, *arguments):
    return shop.folder.run("restore", "--engine", "dynamodb", "--table", "main=restored", *arguments)


def test_rows_are_those_of_the_items_that_the_restored_table_has(shop):
    before = restored.rows(shop.client, "restored")
    own = {"PK": {"S": "HOME#own"}, "SK": {"S": f"{restored.AT}#w#x"}, "mine": {"S": "yes"}}
    shop.client.put_item(TableName="restored", Item=own)

    dry = run(shop, "--dry-run")
    unchanged = restored.rows(shop.client, "restored")
    ran = run(shop, "--yes", "--json")

    assert (dry.code, "home: 4 rows would be removed." in dry.out) == (0, True), dry.out + dry.err
    assert unchanged.keys() - before.keys() == {("HOME#own", f"{restored.AT}#w#x")}
    assert ran.code == 0, ran.out + ran.err
    found = json.loads(ran.out)
    assert (found["removed"]["home"], found["kept"], found["remaining"]) == (4, 1, 0)
    after = restored.rows(shop.client, "restored", of_changes=False)
    assert after.pop(("HOME#own", f"{restored.AT}#w#x"))["mine"] == "yes"
    assert after == restored.rows(shop.client, "anew", of_changes=False)
    of_changes = {key: row for key, row in before.items() if key[0].startswith(("CHANGES", "AUDIT"))}
    assert of_changes.items() <= restored.rows(shop.client, "restored").items()


def test_a_restore_that_was_stopped_behind_the_backfill_removes_nothing_again(shop, monkeypatch):
    with monkeypatch.context() as stopped:
        stopped.setattr("streamfold.cli.restore._corrected_attributes", interrupted)
        assert run(shop, "--yes").code != 0
    ran = run(shop, "--yes")
    assert (ran.code, "this one goes on" in ran.err) == (0, True), ran.out + ran.err
    after = restored.rows(shop.client, "restored", of_changes=False)
    assert after == restored.rows(shop.client, "anew", of_changes=False)


def interrupted(_):
    raise KeyboardInterrupt


def test_a_state_that_is_not_empty_is_refused(shop):
    assert run(shop, "--yes").code == 0
    ran = run(shop, "--yes")
    assert (ran.code, "Expected an empty state" in ran.err) == (2, True)


def test_a_local_state_is_refused(folder):
    folder.app(restored.CODE)
    assert folder.run("restore", "--state", "state.db", "--yes").code == 2
