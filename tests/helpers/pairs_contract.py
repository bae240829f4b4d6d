"""What every engine does alike with rows that are made of two items, and with the mirrors of these."""

import pytest

from streamfold.engines.protocol import Entries
from streamfold.keys.table import CONTRIBUTORS, PARTNER_VERSION, VERSION
from streamfold.writes.guarded import CONDITION, DeleteState, PutPostRow, PutRow, PutState, PutStoredCopy, StateKey
from tests.helpers.engine_contract import EXPIRES, ROW

MIRROR = StateKey("posts#shop#timeline#USER#b", "POST#1")
ROWS = [("shop", "FEED#ada", f"{number:03}") for number in range(30)]


def pair(first="v2", second="w2", key=ROW, attributes=None, **more):
    return PutPostRow(key, attributes, (first, second), EXPIRES, **more)


def shown(first="v2", second="w2", **more):
    return pair(first, second, attributes={"text": f"{first}/{second}"}, **more)


class PairsContract:
    """Wants a fixture ``store`` with all tables."""

    def test_a_pair_makes_a_row_with_both_versions(self, store):
        store.write(shown())
        row = store.row()
        assert (row["text"], row[VERSION], row[PARTNER_VERSION], row[CONTRIBUTORS]) == ("v2/w2", "v2", "w2", 1)
        assert row["expires"] == EXPIRES

    @pytest.mark.parametrize(("first", "second"), [("v2", "w2"), ("v3", "w2"), ("v2", "w3"), ("v3", "w3")])
    def test_a_pair_that_is_not_older_on_either_side_takes_the_place_of_a_row(self, store, first, second):
        store.write(pair(attributes={"text": "old", "left": 1}))
        store.write(shown(first, second))
        assert store.row()["text"] == f"{first}/{second}"
        assert "left" not in store.row()

    @pytest.mark.parametrize(("first", "second"), [("v1", "w2"), ("v2", "w1"), ("v1", "w3"), ("v3", "w1")])
    def test_a_pair_that_is_older_on_one_side_is_refused_with_what_is_there(self, store, first, second):
        store.write(shown())
        (reason,) = store.refused(shown(first, second))
        assert (reason.code, reason.item[VERSION], reason.item[PARTNER_VERSION]) == (CONDITION, "v2", "w2")
        assert store.row()["text"] == "v2/w2"

    def test_a_pair_that_is_not_shown_leaves_its_versions_alone(self, store):
        store.write(shown("v1", "w1"))
        store.write(pair())
        row = store.row()
        assert (row[CONTRIBUTORS], row[VERSION], row[PARTNER_VERSION], "text" in row) == (0, "v2", "w2", False)

    def test_a_pair_that_replaces_makes_no_row(self, store):
        (reason,) = store.refused(shown(replaces=True))
        assert (reason.code, reason.item) == (CONDITION, None)
        store.write(shown("v1", "w1"))
        store.write(shown(replaces=True))
        assert store.row()["text"] == "v2/w2"

    def test_a_row_that_is_no_pair_is_not_overwritten(self, store):
        store.write(PutRow(ROW, {"text": "another's"}))
        (reason,) = store.refused(shown())
        assert (reason.code, reason.item["text"]) == (CONDITION, "another's")

    def test_many_pairs_are_written_at_once(self, store):
        pairs = [shown(key=key, fresh=True) for key in ROWS]
        assert store.engine.put_post_rows(pairs) == []
        assert [row["text"] for row in store.rows("shop")] == ["v2/w2"] * len(ROWS)

    @pytest.mark.parametrize("fresh", [True, False])
    def test_a_pair_of_some_hundred_attributes_is_written_alone_if_not_among_many(self, store, fresh):
        wide = {f"attribute_name_{number:05}": str(number) for number in range(330)}
        pairs = [pair(key=ROWS[0], attributes=wide, fresh=fresh), shown(key=ROWS[1], fresh=fresh)]
        for each in store.engine.put_post_rows(pairs):
            store.write(next(one for one in pairs if one.key == each))
        first, second = store.rows("shop")
        assert ({name: first[name] for name in wide}, second["text"]) == (wide, "v2/w2")

    @pytest.mark.parametrize("fresh", [True, False])
    def test_what_is_found_decides_whether_a_pair_is_written_among_many(self, store, fresh):
        store.engine.put_post_rows([shown("v1", "w1", key=key) for key in ROWS[:10]])
        store.engine.put_post_rows([shown("v3", "w1", key=key) for key in ROWS[10:12]])
        assert store.engine.put_post_rows([shown(key=key, fresh=fresh) for key in ROWS]) == ROWS[10:12]
        assert [row["text"] for row in store.rows("shop")] == [*["v2/w2"] * 10, *["v3/w1"] * 2, *["v2/w2"] * 18]

    def test_pairs_that_replace_make_no_rows_among_many(self, store):
        store.engine.put_post_rows([shown("v1", "w1", key=key) for key in ROWS[:3]])
        left = store.engine.put_post_rows([shown(key=key, replaces=True) for key in ROWS])
        assert set(left) == set(ROWS[3:])
        assert [row["text"] for row in store.rows("shop")] == ["v2/w2"] * 3

    @pytest.mark.parametrize("removed", [(), ("left", "never there")])
    def test_no_attribute_stays_from_before(self, store, removed):
        store.engine.put_post_rows([pair("v1", "w1", key, {"text": "old", "left": 1}) for key in ROWS])
        wanted = {write.key: write for write in (shown(key=key, removed=removed) for key in ROWS)}
        for key in store.engine.put_post_rows([*wanted.values()]):
            store.write(wanted[key])
        assert [(row["text"], "left" in row) for row in store.rows("shop")] == [("v2/w2", False)] * len(ROWS)

    def test_pairs_that_are_hidden_lose_their_attributes(self, store):
        store.engine.put_post_rows([shown("v1", "w1", key=key) for key in ROWS])
        assert store.engine.put_post_rows([pair(key=key, removed=("text",)) for key in ROWS]) == []
        assert [(row[CONTRIBUTORS], "text" in row) for row in store.rows("shop")] == [(0, False)] * len(ROWS)

    def test_a_pair_that_cannot_be_stored_is_left_and_the_others_are_written(self, store):
        pairs = [shown(key=key, fresh=True) for key in ROWS[:4]]
        pairs[2] = pairs[2]._replace(attributes={"text": "x" * 410_000})
        assert store.engine.put_post_rows(pairs) == [ROWS[2]]
        assert len(store.rows("shop")) == 3

    def test_no_pairs_are_written(self, store):
        assert store.engine.put_post_rows([]) == []

    # Mirrors

    def test_a_mirror_is_written_over_an_older_or_the_same_version(self, store):
        for version in ("v1", "v2", "v2"):
            store.write(PutStoredCopy(MIRROR, f"text of {version}", version, EXPIRES))
        assert store.state(MIRROR) == {"s": "text of v2", "v": "v2", "ttl": EXPIRES}

    def test_a_mirror_is_not_written_over_a_newer_version(self, store):
        store.write(PutStoredCopy(MIRROR, "newer", "v2", None))
        (reason,) = store.refused(PutStoredCopy(MIRROR, "older", "v1", EXPIRES))
        assert reason.code == CONDITION
        assert store.state(MIRROR) == {"s": "newer", "v": "v2"}

    def test_mirrors_are_read_as_entries_between_two_that_are_there(self, store):
        for number in range(6):
            store.write(PutStoredCopy(MIRROR._replace(sk=f"POST#{number}"), str(number), "v1", None))
        found = store.engine.read_entries(Entries(MIRROR.pk, 2, "POST#1", before="POST#5"))
        assert found == [("POST#2", "2"), ("POST#3", "3")]
        found = store.engine.read_entries(Entries(MIRROR.pk, 9, "POST#1", descending=True, before="POST#5"))
        assert [text for _, text in found] == ["4", "3", "2"]

    def test_a_state_item_is_removed_if_it_holds_what_is_expected(self, store):
        store.write(PutState(MIRROR, "one"))
        (reason,) = store.refused(DeleteState(MIRROR, "two"))
        assert (reason.code, reason.item["s"]) == (CONDITION, "one")
        store.write(DeleteState(MIRROR, "one"))
        (reason,) = store.refused(DeleteState(MIRROR, "one"))
        assert (reason.code, reason.item) == (CONDITION, None)

    def test_pairs_whose_key_attributes_begin_like_placeholders_are_left_to_be_written_alone(self, store):
        key = ("marked", "FEED#ada", "1")
        wanted = pair(key=key, attributes={"text": "a"}, fresh=True)
        if store.engine.put_post_rows([wanted]):
            store.write(wanted)
        assert store.row(key)["text"] == "a"
