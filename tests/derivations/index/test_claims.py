"""Unique index items: several items claim a row, one wins, and a conflict is reported and resolves itself."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamfold import App, Count, Key, Router, Row, Sum
from streamfold.batch.process import process_event
from streamfold.engines import EmbeddedEngine, MemoryEngine
from streamfold.engines.capacity import CountingEngine
from streamfold.errors import DeclarationError, EngineUnavailable, HandlerError, ManifestError
from streamfold.failures.repair import Repair
from streamfold.parking import FileParking
from streamfold.records.values import encode
from streamfold.routes.shipped_aggregates import CLAIMANTS_MAX
from streamfold.runtime import Knowledge, Runtime
from streamfold.settings import Settings
from streamfold.testing import Twin, Write, check
from tests.helpers.contributions import contribution
from tests.helpers.model import stored
from tests.helpers.records import image, item
from tests.helpers.small_handlers import handler, route
from tests.helpers.source import Source

USER = Key("USER#{user}", "PROFILE")
EMAIL = Key("EMAIL#{email}", "USER")
DOUBLE = Key("DOUBLE", "EMAIL#{email}")
HANDLE = Key("HANDLE#{handle}", "USER")
X = ("main", "EMAIL#x", "USER")


def by_email(item, user):
    if item.get("email"):
        yield Row(email=item["email"], user=user, **item.get("more", {}))


def app_of(**options):
    router = Router()
    router.index(USER, into=EMAIL, unique=True, **options)(by_email)
    return App("users", routers=[router])


class Users:
    """A stream of users, an application over it, and a store; ``before`` does something before calls of a method."""

    def __init__(self, engine=None, parking=None, **options):
        self.known = Knowledge()
        self.app = app_of(**options)
        self.engine = engine or MemoryEngine(self.app.tables.values(), self.app.chains)
        self.source = Source()
        self.parking = parking
        self.before = {}
        self.report = None

    def put(self, user, email="x", **more):
        return self.source.put(f"USER#{user}", "PROFILE", email=email, **more)

    def remove(self, user):
        return self.source.remove(f"USER#{user}", "PROFILE")

    def deliver(self, *records):
        run = Runtime(self.app, self, Settings(), pause=lambda seconds: None, parking=self.parking, known=self.known)
        self.report = process_event(run, list(records))
        return self.report.failures

    def row(self):
        return stored(self.app, self.engine).get(X)

    def __getattr__(self, name):
        method = getattr(self.engine, name)
        if not callable(method):
            return method

        def call(*arguments, **how):
            if (meanwhile := self.before.pop(name, None)) is not None:
                meanwhile()
            return method(*arguments, **how)

        return call


def test_a_row_that_an_item_lost_to_an_earlier_one_stays_when_that_leaves():
    """The counter-example of one owner: 0 and 1 want x, 0 arrives late and overwrites, 0 leaves x."""
    users = Users()
    zero = users.put("0")
    users.deliver(users.put("1"))
    users.deliver(zero)
    assert users.row() == {"user": "0", "conflict": [{"user": "1"}]}
    users.deliver(users.remove("0"))
    assert users.row() == {"user": "1"}


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_the_winner_is_the_smallest_key_in_whatever_order_the_items_come(order):
    users = Users()
    records = [users.put(str(number)) for number in range(3)]
    for number in order:
        assert users.deliver(records[number]) == []
    assert users.row() == {"user": "0", "conflict": [{"user": "1"}, {"user": "2"}]}


def test_the_smallest_key_is_that_whose_parts_come_first():
    users = Users()
    users.deliver(users.put("c107"), users.put("c1"))
    assert users.row()["user"] == "c1"


@pytest.mark.parametrize(
    ("choice", "claimants"),
    [
        ({}, "0123"),
        ({"ties": "largest key"}, "3210"),
        ({"by": "at"}, "0123"),
        ({"by": "at", "ties": "largest key"}, "0321"),
        ({"by": "at", "smallest": True}, "1230"),
        ({"by": "at", "smallest": True, "ties": "largest key"}, "3210"),
    ],
)
def test_the_winner_has_the_largest_or_smallest_value_and_of_equal_ones_the_key_decides(choice, claimants):
    users = Users(**choice)
    moments = {"0": "2026-03-02", "1": "2026-03-01", "2": "2026-03-01", "3": "2026-03-01"}
    users.deliver(*(users.put(user, at=at) for user, at in moments.items()))
    shown = [users.row()["user"], *(claim["user"] for claim in users.row()["conflict"])]
    assert "".join(shown) == claimants
    users.deliver(users.remove(claimants[0]))
    assert users.row()["user"] == shown[1]


@pytest.mark.parametrize(("ties", "user"), [("smallest key", "00"), ("largest key", "29")])
@pytest.mark.parametrize("smallest", [False, True])
def test_of_more_equal_claims_than_a_row_shows_the_key_decides(smallest, ties, user):
    users = Users(by="at", smallest=smallest, ties=ties)
    users.deliver(*(users.put(f"{number:02d}", at=1) for number in range(30)))
    assert (users.row()["user"], len(users.row()["conflict"])) == (user, 9)


def test_a_winner_takes_all_its_attributes_along():
    users = Users()
    users.deliver(users.put("0", more={"note": "n"}), users.put("1"))
    users.deliver(users.put("0", email="y"))
    assert users.row() == {"user": "1"}
    users.deliver(users.put("1", more={"name": "m"}))
    assert users.row() == {"user": "1", "name": "m"}


def test_a_row_that_nobody_claims_any_more_is_removed_with_all_that_stood_below_it():
    users = Users()
    users.deliver(users.put("0"), users.put("1"))
    users.deliver(users.put("0", email=""), users.remove("1"))
    assert users.engine.rows == {}
    assert not [key for key in users.engine.state if key.pk.startswith("entries#")]


def test_of_many_claimants_a_row_shows_the_first():
    users = Users()
    records = [users.put(f"{number:02d}") for number in range(CLAIMANTS_MAX + 3)]
    users.deliver(*reversed(records))
    assert [claim["user"] for claim in users.row()["conflict"]] == [f"{n:02d}" for n in range(1, CLAIMANTS_MAX)]
    users.deliver(*(users.remove(f"{number:02d}") for number in range(CLAIMANTS_MAX)))
    assert users.row() == {"user": "10", "conflict": [{"user": "11"}, {"user": "12"}]}


def test_an_item_that_yields_a_row_twice_claims_it_once():
    (part,) = claimed(Row(email="x", n=1), Row(email="x", n=1)).values()
    assert len(part.ordered[""].entries) == 1
    with pytest.raises(HandlerError, match="twice with different values"):
        claimed(Row(email="x", n=1), Row(email="x", n=2))


def claimed(*rows, by=None, **attributes):
    """What an item with these attributes contributes through a unique index."""
    declared = route("index", handler(*rows), USER, into=EMAIL, unique=True, by=by)
    return contribution(declared, image(item("USER#0", "PROFILE", **attributes)), {"user": "0"})


# Conflicts are told


def test_a_conflict_is_counted_and_no_record_comes_again_for_it():
    users = Users()
    assert users.deliver(users.put("0")) == []
    assert not users.report.counts.get("conflicts", {})
    assert users.deliver(users.put("1")) == []
    assert users.report.counts.get("conflicts", {}) == {"by_email": 1}
    assert users.deliver(users.remove("1")) == []
    assert not users.report.counts.get("conflicts", {})


def test_a_claimant_that_is_not_shown_is_counted_too():
    users = Users()
    users.deliver(*(users.put(f"{number:02d}") for number in range(CLAIMANTS_MAX)))
    assert users.report.counts.get("conflicts", {}) == {"by_email": CLAIMANTS_MAX}
    users.deliver(users.put("98"), users.put("99", email="y"))
    assert users.report.counts.get("conflicts", {}) == {"by_email": 1}


def test_one_that_leaves_others_in_conflict_is_not_counted():
    users = Users()
    users.deliver(users.put("0"), users.put("1"), users.put("2"))
    users.deliver(users.remove("1"))
    assert users.row() == {"user": "0", "conflict": [{"user": "2"}]}
    assert not users.report.counts.get("conflicts", {})


def test_a_row_that_could_not_be_recomputed_is_told_when_the_record_comes_again():
    users = Users()
    users.deliver(users.put("0"))
    one = users.put("1")
    users.before["read_rows"] = unavailable
    assert len(users.deliver(one)) == 1
    assert not users.report.counts.get("conflicts", {})
    assert users.deliver(one) == []
    assert users.report.counts.get("conflicts", {}) == {"by_email": 1}


def test_a_record_that_leads_to_a_conflict_is_parked_and_its_claim_stays(tmp_path):
    users = Users(parking=FileParking(str(tmp_path / "parked.jsonl")), on_conflict="park")
    assert users.deliver(users.put("1")) == []
    assert users.deliver(users.put("0")) == []
    assert users.report.parked == {"by_email": 1}
    parked = (tmp_path / "parked.jsonl").read_text("utf-8")
    assert "USER#0" in parked
    assert "claims row EMAIL#x / USER of unique index 'by_email', and so does another" in parked
    assert "USER#1" not in parked
    assert users.row() == {"user": "0", "conflict": [{"user": "1"}]}


def test_of_several_changes_of_an_item_the_newest_is_parked(tmp_path):
    users = Users(parking=FileParking(str(tmp_path / "parked.jsonl")), on_conflict="park")
    users.deliver(users.put("0"))
    users.deliver(users.put("1", more={"n": 1}), users.put("1", more={"n": 2}))
    assert users.report.parked == {"by_email": 1}


def test_a_conflict_that_cannot_be_parked_is_reported():
    users = Users(on_conflict="park")
    users.deliver(users.put("0"))
    (failure,) = users.deliver(users.put("1"))
    assert "No parking place is set" in str(failure.error)


class Died(BaseException):
    """The process ended here."""


def died():
    raise Died


def test_a_conflict_is_told_when_the_record_comes_again_to_a_process_that_died(tmp_path):
    users = Users(parking=FileParking(str(tmp_path / "parked.jsonl")), on_conflict="park")
    users.deliver(users.put("0"))
    one = users.put("1")
    users.before["read_rows"] = died
    with pytest.raises(Died):
        users.deliver(one)
    assert users.deliver(one) == []
    assert users.report.parked == {"by_email": 1}
    assert users.row() == {"user": "0", "conflict": [{"user": "1"}]}


def unavailable():
    raise EngineUnavailable("no answer")


def test_a_record_comes_again_where_the_store_does_not_tell_whether_there_is_a_conflict():
    users = Users()
    users.deliver(users.put("0"))
    one = users.put("1")
    users.before["read_entries"] = lambda: users.before.update(read_entries=unavailable)
    (failure,) = users.deliver(one)
    assert (failure.handler, str(failure.error)) == ("by_email", "no answer")
    assert not users.report.counts.get("conflicts", {})
    assert users.deliver(one) == []
    assert users.report.counts.get("conflicts", {}) == {"by_email": 1}


def test_conflicts_are_those_of_the_index_whose_row_is_claimed_twice():
    router = Router()
    router.index(USER, into=EMAIL, unique=True)(by_email)

    @router.index(USER, into=HANDLE, unique=True)
    def by_handle(item):
        yield Row(handle=item["handle"])

    @router.view(USER, into=Key("USERS", "TOTAL"))
    def users(item):
        yield Row(users=Count())

    app, source = App("users", routers=[router]), Source()
    records = [source.put(f"USER#{n}", "PROFILE", email="x", handle=str(n)) for n in range(2)]
    report = process_event(Runtime(app, MemoryEngine(app.tables.values()), Settings()), records)
    assert report.counts.get("conflicts", {}) == {"by_email": 2}


# A repair tells of them too


def repair_of(users, user, **options):
    """What a repair makes of a user who is in the table, and whose record may never have come."""
    source = users.source.items[f"USER#{user}", "PROFILE"]
    users.engine.put_sources([(("main", f"USER#{user}", "PROFILE"), encode(source)["M"], "1")])
    run = Runtime(users.app, users, Settings(), pause=lambda seconds: None)
    (repaired,) = Repair(run, **options).item(("main", f"USER#{user}", "PROFILE"))
    return repaired


@pytest.mark.parametrize("on_conflict", ["report", "park"])
def test_a_repair_tells_of_the_conflict_that_it_leads_to(on_conflict):
    users = Users(on_conflict=on_conflict)
    users.deliver(users.put("0"))
    users.put("1")
    (conflict,) = repair_of(users, "1").conflicts
    assert str(conflict).startswith(
        "The item claims row EMAIL#x / USER of unique index 'by_email', and so does another"
    )
    assert users.row() == {"user": "0", "conflict": [{"user": "1"}]}


def test_a_repair_that_finds_nothing_to_do_tells_of_the_conflict_again():
    users = Users()
    users.deliver(users.put("0"), users.put("1"))
    repaired = repair_of(users, "0")
    assert (repaired.written, repaired.removed, len(repaired.conflicts)) == (0, 0, 1)


def test_a_dry_repair_tells_of_the_conflict_that_it_would_lead_to():
    users = Users()
    users.deliver(users.put("0"))
    users.put("1")
    assert len(repair_of(users, "1", dry_run=True).conflicts) == 1
    assert users.row() == {"user": "0"}


def test_a_repair_of_the_only_claimant_meets_no_conflict():
    users = Users()
    users.deliver(users.put("0"), users.put("1"))
    users.deliver(users.put("0", email="y"))
    assert repair_of(users, "0").conflicts == repair_of(users, "1").conflicts == ()


def test_a_conflict_row_needs_no_telling_by_a_repair():
    users = Users(on_conflict=DOUBLE)
    users.deliver(users.put("0"))
    users.put("1")
    assert repair_of(users, "1").conflicts == ()


def test_a_repair_that_cannot_tell_whether_there_is_a_conflict_is_to_be_done_again():
    users = Users()
    users.deliver(users.put("0"))
    users.put("1")
    users.before["read_entries"] = lambda: users.before.update(read_entries=unavailable)
    assert str(repair_of(users, "1").error) == "no answer"
    assert len(repair_of(users, "1").conflicts) == 1


# Conflict rows


def test_a_conflict_row_is_there_as_long_as_the_conflict():
    twin = Twin(app_of(on_conflict=DOUBLE))
    twin.put(USER, user="0", email="x")
    assert twin.rows(DOUBLE) == []
    twin.put(USER, user="1", email="x")
    conflict = {**DOUBLE.key(email="x"), "user": "0", "conflict": [{"user": "1"}]}
    assert twin.rows(DOUBLE) == [conflict]
    twin.put(USER, user="1", email="y")
    assert twin.rows(DOUBLE) == []
    twin.put(USER, user="1", email="x")
    twin.delete(USER, user="0")
    twin.delete(USER, user="1")
    assert twin.rows(DOUBLE) == twin.rows(EMAIL) == []


# Bad input


@pytest.mark.parametrize("email", ["", None, b""])
def test_a_unique_key_that_is_empty_is_refused(email):
    message = f"Index 'handler' gave Row(email={email!r}), a unique key that is empty: email={email!r}. Yield a row"
    with pytest.raises(HandlerError, match=re.escape(message)):
        claimed(Row(email=email))


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (Row(email="x", n=Sum(1)), "Index 'handler' gave 'n' as an aggregate: an index item has one source"),
        (Row(email="x", wins=1), "Index 'handler' gave wins=: an index item has one source"),
        (Row(email="x", conflict=1), "gave 'conflict', under which a unique row lists the losing claims"),
        (Row(email="x", attributes={"conflict": 1}), "gave 'conflict', under which a unique row lists"),
        (Row(email="x", note="x" * 32_768), "The claim of index 'handler' has a value of"),
        (Row(), "leaves 'email' of Key('EMAIL#{email}', 'USER') without a value"),
    ],
)
def test_what_a_unique_row_cannot_have_is_refused(row, message):
    with pytest.raises(HandlerError, match=re.escape(message)):
        claimed(row)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({}, "Index 'handler' orders claims by='at', which the item does not have"),
        ({"at": None}, "by='at', which the item does not have: expected a number, text, bytes, a date or a time."),
        ({"at": [1]}, "The claim of index 'handler' is ordered by [1] of type list, which does not compare"),
    ],
)
def test_an_item_that_does_not_say_when_it_came_is_refused(more, message):
    with pytest.raises(HandlerError, match=re.escape(message)):
        claimed(Row(email="x"), by="at", **more)


def test_claims_by_values_of_several_types_have_one_order_too():
    users = Users(by="at")
    assert users.deliver(users.put("0", at=2), users.put("1", at="1")) == []
    assert users.row()["user"] == "1"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"unique": 1}, "has unique=1: expected True or False."),
        ({"by": "at"}, "has by='at' without unique=True: it belongs to unique=True only."),
        ({"smallest": True}, "has smallest=True without unique=True: it belongs to unique=True only."),
        ({"ties": "largest key"}, "has ties='largest key' without unique=True: it belongs to unique=True only."),
        ({"unique": True, "smallest": True}, "has smallest=True and by=None: expected True or False, and by= the"),
        ({"unique": True, "by": "at", "smallest": 1}, "has smallest=1 and by='at': expected True or False"),
        ({"unique": True, "ties": "x"}, "has ties='x': expected 'smallest key' or 'largest key'."),
        ({"on_conflict": "park"}, "has on_conflict='park' without unique=True: it belongs to unique=True only."),
        ({"unique": True, "by": ""}, "has by='': expected the name of an attribute of the item, by=\"created_at\"."),
        ({"unique": True, "by": 1}, "has by=1: expected the name of an attribute of the item"),
        ({"unique": True, "on_conflict": "raise"}, 'has on_conflict=\'raise\': expected "report", "park", or the Key'),
        ({"unique": True, "into": [EMAIL, HANDLE]}, "has unique=True and 2 targets: expected one; declare an index"),
    ],
)
def test_what_does_not_fit_together_is_refused_where_it_is_declared(options, message):
    with pytest.raises(DeclarationError, match=re.escape(message)):
        Router().index(USER, **{"into": EMAIL, **options})(by_email)


def test_a_conflict_row_must_be_told_apart_by_the_unique_key():
    with pytest.raises(DeclarationError, match=r"'by_email_conflicts' .* it does not own: .* Missing: email"):
        app_of(on_conflict=Key("DOUBLE", "{user}"))


def test_a_unique_row_whose_template_names_its_source_is_claimed_too():
    own = route("index", handler(Row(email="x")), USER, into=Key("EMAIL#{email}", "USER#{user}"), unique=True)
    assert not own.targets[0].owned


def test_an_index_that_is_unique_is_another_kind_to_the_state_and_has_a_guard_of_its_own():
    router, users = Router(), Users(by="at")
    assert [route.guard for route in users.app.routes] == ["ledger, claimants"]
    users.deliver(users.put("0", at=1))
    router.index(USER, into=Key("EMAIL#{email}", "USER#{user}"), name="by_email")(by_email)
    with pytest.raises(ManifestError, match="its kind from 'unique index' to 'index'"):
        process_event(Runtime(App("users", routers=[router]), users.engine, Settings()), [])


@pytest.mark.parametrize(
    ("options", "costs"),
    [
        ({}, [(7, 3, 5), (7, 4, 6), (9, 3, 7), (8, 2, 5)]),
        ({"on_conflict": DOUBLE}, [(7, 2, 4), (7, 2, 4), (9, 2, 6), (8, 1, 4)]),
    ],
)
def test_claims_cost_what_the_documents_say(options, costs):
    app = app_of(**options)
    users = Users(engine=CountingEngine(EmbeddedEngine(app.tables.values(), wanted=app.chains)), **options)
    users.deliver(users.put("9", email="z"))
    changes = [lambda: users.put("1"), lambda: users.put("0"), lambda: users.remove("0"), lambda: users.remove("1")]
    for change, cost in zip(changes, costs, strict=True):
        users.engine.calls.clear()
        users.deliver(change())
        manifest = users.engine.calls[0]  # once a batch
        assert (manifest.name, manifest.read_units, manifest.requests) == ("read_state", 1, 1)
        assert (users.engine.write_units, users.engine.read_units - 1, users.engine.requests - 1) == cost


# Every history

ITEMS = st.fixed_dictionaries(
    {"email": st.sampled_from(["x", "y", ""]), "at": st.sampled_from([1, 2]), "more": st.sampled_from([{}, {"n": 1}])}
)
KEYS = st.sampled_from([{"user": user} for user in "0123"])
HISTORIES = st.lists(st.builds(Write, st.just(USER), KEYS, st.one_of(ITEMS, ITEMS, st.none())), min_size=1, max_size=14)
LARGEST = {"ties": "largest key"}
OPTIONS = {
    "key": {},
    "largest key": LARGEST,
    "by": {"by": "at"},
    "by, largest key": {"by": "at", **LARGEST},
    "smallest": {"by": "at", "smallest": True},
    "smallest, largest key": {"by": "at", "smallest": True, **LARGEST},
    "conflict row": {"by": "at", "on_conflict": DOUBLE},
}


@pytest.mark.slow
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@given(HISTORIES, st.integers(0, 2**32))
@settings(max_examples=10)
def test_histories_lead_to_the_model(options, writes, seed):
    check(app_of(**options), writes=writes, histories=1, seed=seed, processes=0)


@pytest.mark.ci
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@given(HISTORIES, st.integers(0, 2**32))
@settings(max_examples=50)
def test_fifty_histories_lead_to_the_model(options, writes, seed):
    check(app_of(**options), writes=writes, histories=1, seed=seed, processes=0)


@pytest.mark.nightly
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@given(HISTORIES, st.integers(0, 2**32))
@settings(max_examples=1000)
def test_a_thousand_histories_lead_to_the_model(options, writes, seed):
    check(app_of(**options), writes=writes, histories=1, seed=seed, processes=0)


@pytest.mark.slow
@pytest.mark.parametrize("source", ["stream", "kinesis"])
def test_contended_claims_do_not_diverge(source):
    users = [{"user": str(user), "email": email, "at": user % 3} for user in range(5) for email in ("x", "y", "")]
    proof = check(app_of(by="at", on_conflict=DOUBLE), {USER: users}, histories=25, source=source)
    assert proof.faults.total() > 40
