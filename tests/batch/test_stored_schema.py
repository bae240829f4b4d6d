"""What a state knows of its rows' attributes: a new process does not make them of something else."""

import json

import pytest

from streamfold import App, Average, Collect, Count, Distinct, Key, Latest, Max, Min, Router, Row, Sum, Top
from streamfold.batch.process import process_event
from streamfold.batch.stored_schema import NAMES_BYTES_MAX, NAMES_MAX
from streamfold.engines import MemoryEngine
from streamfold.errors import EngineUnavailable
from streamfold.failures.repair import Repair
from streamfold.ledger.state_keys import schema_key
from streamfold.runtime import Runtime
from streamfold.settings import Settings
from tests.helpers.known import Known
from tests.helpers.source import Source

PLAY = Key("GAME#{game}", "PLAY#{play}")
STATS = Key("GAME#{game}", "STATS")
KINDS = {
    "sum": lambda play: {"m": Sum(play["v"])},
    "max": lambda play: {"m": Max(play["v"])},
    "min": lambda play: {"m": Min(play["v"])},
    "latest": lambda play: {"m": Latest(play["v"], by=play["v"])},
    "top": lambda play: {"m": Top(2, play["v"], by=play["v"])},
    "distinct": lambda play: {"m": Distinct(play["v"])},
    "collect": lambda play: {"m": Collect(play["v"])},
    "won": lambda play: {"m": play["v"], "wins": play["v"]},
    "average of another name": lambda play: {"n": Average(play["v"])},
}


def app_of(*makes, name="plays", **options):
    """A new process's application: views that make the same row, each as one of these says."""
    router = Router()
    for number, make in enumerate(makes):
        router.view(PLAY, into=STATS, name=f"{name}_{number}" if number else name)(handler(make))
    return App("games", routers=[router], **options)


def handler(make):
    def stats(play):
        yield Row(**make(play))

    return stats


class State:
    """A store that outlives the processes that write to it."""

    def __init__(self, app):
        self.engine = MemoryEngine(app.tables.values())
        self.source = Source()
        self.warned = []
        self.known = Known()  # by each application as its processes have it

    def process(self, app, *changes):
        """What the handlers could not do with these changes, as a process of this application."""
        run = Runtime(app, self.engine, Settings(), warn=self.warned.append, known=self.known.of(self.engine, app))
        report = process_event(run, list(changes))
        return [str(failure.error) for failure in report.failures]

    def play(self, number, value):
        return self.source.put("GAME#chess", f"PLAY#{number}", v=value)

    def row(self):
        key = ("main", "GAME#chess", "STATS")
        return self.engine.read_rows([key]).get(key)

    def kinds(self, target=STATS):
        """What the state holds of a target's attributes, by handler."""
        key = schema_key("games", target.stored_name)
        return json.loads(self.engine.read_state([key])[key]["kinds"])


@pytest.mark.parametrize(
    ("before", "after"),
    [
        *((kind, "sum") for kind in KINDS if kind not in ("sum", "average of another name")),
        *(("sum", kind) for kind in KINDS if kind not in ("sum", "average of another name")),
    ],
)
def test_an_attribute_that_is_made_otherwise_than_what_is_stored_is_refused(before, after):
    one, other = app_of(KINDS[before]), app_of(KINDS[after])
    state = State(one)
    assert state.process(one, state.play(1, 10), state.play(2, 20)) == []
    shown = state.row()
    (error,) = state.process(other, state.play(1, 11))
    assert "one attribute of a target has one form" in error
    assert state.row() == shown


@pytest.mark.parametrize(("before", "after"), [("max", "min"), ("top", "collect"), ("distinct", "max")])
def test_one_that_orders_may_follow_another(before, after):
    one, other = app_of(KINDS[before]), app_of(KINDS[after])
    state, fresh = State(one), State(other)
    for each, app in ((state, one), (state, other), (fresh, other)):
        assert each.process(app, each.play(1, 10), each.play(2, 20)) == []
        assert each.process(app, each.play(1, 11), each.play(2, 19)) == []
    assert state.row()["m"] == fresh.row()["m"]


def test_it_is_taken_under_another_name():
    one, other = app_of(KINDS["max"]), app_of(KINDS["average of another name"])
    state = State(one)
    state.process(one, state.play(1, 10), state.play(2, 20))
    assert state.process(other, state.play(1, 11), state.play(2, 20), state.play(2, 25)) == []
    row = state.row()
    assert (row["n_sum"], row["n_count"]) == (36, 2)
    assert "m" not in row


def large_and_small():
    """Two views of one attribute, each of other items."""
    router = Router()

    @router.view(PLAY, into=STATS)
    def large(play):
        if play["v"] > 5:
            yield Row(m=Max(play["v"]))

    @router.view(PLAY, into=STATS)
    def small(play):
        if 0 < play["v"] <= 5:
            yield Row(m=Max(play["v"]))

    return App("games", routers=[router])


def test_a_second_handler_of_an_attribute_is_refused_in_another_process_too():
    state = State(large_and_small())
    assert state.process(large_and_small(), state.play(1, 9)) == []
    (error,) = state.process(large_and_small(), state.play(2, 3))
    assert "but handler 'large' gave it as Max, Top or the like" in error


def test_it_is_refused_in_a_process_that_began_before_the_first_was_noted():
    one, other = large_and_small(), large_and_small()
    state = State(one)
    for app in (one, other):
        assert state.process(app, state.play(0, 0)) == []
    assert state.process(one, state.play(1, 9)) == []
    (error,) = state.process(other, state.play(2, 3))
    assert "but handler 'large' gave it as Max, Top or the like" in error
    assert (state.row()["m"], state.row()["_sf_n"]) == (9, 1)


def test_what_was_refused_does_not_say_what_is_taken():
    app = app_of(lambda play: {"m": play["v"] and Sum(play["v"])})
    state = State(app)
    assert "plain attribute 'm'" in state.process(app, state.play(1, 0))[0]
    assert state.process(app, state.play(2, 3)) == []
    assert state.row()["m"] == 3


def test_an_average_is_known_by_the_numbers_that_it_keeps():
    one, other = app_of(lambda play: {"m": Average(play["v"])}), app_of(lambda play: {"m_sum": Max(play["v"])})
    state = State(one)
    assert state.process(one, state.play(1, 3)) == []
    assert "gave 'm_sum'" in state.process(other, state.play(2, 4))[0]


def test_an_application_goes_by_the_state_that_it_is_run_over():
    app = app_of(lambda play: {"m": (Sum if play["v"] > 5 else Max)(play["v"])})
    sums, greatest = State(app), State(app)
    other = app_of(KINDS["max"])
    assert greatest.process(other, greatest.play(1, 3)) == []
    assert sums.process(app, sums.play(1, 10)) == []
    assert "before as Max, Top or the like" in greatest.process(app, greatest.play(2, 10))[0]


def test_a_repair_notes_what_it_writes():
    one, other = app_of(KINDS["max"]), app_of(KINDS["sum"])
    state = State(one)
    record = state.play(1, 10)
    state.engine.put_sources([(("main", "GAME#chess", "PLAY#1"), record["dynamodb"]["NewImage"], "1")])
    (repaired,) = Repair(Runtime(one, state.engine, Settings())).item(("main", "GAME#chess", "PLAY#1"))
    assert repaired.error is None
    assert "one attribute of a target has one form" in state.process(other, state.play(2, 3))[0]


def test_a_store_that_does_not_take_it_now_is_asked_again():
    app = app_of(KINDS["max"])
    state = State(app)
    swap, tries = state.engine.swap_state, []

    def refusing(key, *given):
        if key.pk == schema_key("games", "").pk and len(tries) < 2:
            tries.append(key)
            raise EngineUnavailable("not now")
        return swap(key, *given)

    state.engine.swap_state = refusing
    for number in range(3):
        assert state.process(app, state.play(number, number)) == []
    assert state.kinds() == {"plays": {"m": "ordered"}}


def test_a_value_of_an_odd_type_says_nothing_of_those_of_other_items():
    app = app_of(KINDS["max"])
    state = State(app)
    assert state.process(app, state.play(1, "n/a")) == []
    assert state.process(app, *(state.play(number, number) for number in range(2, 100))) == []
    assert state.row()["m"] == "n/a"  # texts are greater than numbers, whoever comes first
    assert state.process(app_of(KINDS["max"]), state.play(1, 0)) == []
    assert state.row()["m"] == 99


def test_a_set_of_values_that_do_not_go_together_is_refused_in_its_row_alone():
    app = app_of(KINDS["collect"])
    state = State(app)
    (error,) = state.process(app, state.play(1, 1), state.play(2, "n/a"))[:1]
    assert "cannot be stored: expected members that are all text, all numbers or all bytes" in error
    assert state.process(app, state.play(2, 3)) == []
    assert state.row()["m"] == {1, 3}


@pytest.mark.parametrize("way", [1, -1])
def test_a_set_does_not_become_a_list_nor_a_list_a_set(way):
    makes = [lambda play: {"m": Collect(play["v"])}, lambda play: {"m": Collect(play["v"], into=list)}]
    before, after = (app_of(make) for make in makes[::way])
    between = app_of(KINDS["max"])
    state = State(before)
    assert state.process(before, state.play(1, 1), state.play(2, 2)) == []
    for _ in range(2):
        (error,) = state.process(after, state.play(1, 3))
        assert "and before as Collect(into=" in error
        assert state.process(between, state.play(2, 4)) == []  # one that orders may follow, and changes nothing of it
        after = app_of(makes[::way][1])


def test_a_retired_handlers_attribute_is_not_made_by_another():
    one = app_of(KINDS["max"])
    state = State(one)
    state.process(one, state.play(1, 9))
    other = app_of(KINDS["sum"], name="visits", retired=["plays"])
    (error,) = state.process(other, state.play(2, 3))
    assert "rows still hold the values of the retired handler 'plays'" in error
    assert state.process(app_of(lambda play: {"n": Sum(play["v"])}, name="calls", retired=["plays", "visits"])) == []


def test_what_is_known_is_noted_once_and_read_with_the_manifest():
    app = app_of(KINDS["max"])
    state = State(app)
    calls = []
    for name in ("read_state", "swap_state"):
        method = getattr(state.engine, name)
        setattr(
            state.engine,
            name,
            lambda *given, name=name, method=method, **more: calls.append(name) or method(*given, **more),
        )
    for number in range(3):
        state.process(app, state.play(number, number))
    assert calls == ["read_state", "swap_state", "swap_state", "read_state", "read_state"]
    assert state.kinds() == {"plays": {"m": "ordered"}}


def test_processes_that_learn_at_the_same_time_note_what_each_has_seen():
    app = app_of(KINDS["max"])
    state = State(app)
    state.process(app, state.play(1, 1))
    late = app_of(lambda play: {"other": Max(play["v"])}, name="plays")
    swap = state.engine.swap_state

    def overtaken(*given):
        state.engine.swap_state = swap
        early = app_of(lambda play: {"third": Max(play["v"])}, name="plays")
        assert state.process(early, state.play(3, 1)) == []
        return swap(*given)

    state.engine.swap_state = overtaken
    assert state.process(late, state.play(2, 1)) == []
    assert state.kinds() == {"plays": {"m": "ordered", "other": "ordered", "third": "ordered"}}


def making_up_names(kind, into=STATS):
    """A view that makes up names as it goes, and one whose first attribute, made so, comes behind these."""
    router = Router()

    @router.view(PLAY, into=STATS)
    def days(play):
        yield Row(**{f"on_{play['v']}": Count()})

    @router.view(PLAY, into=into)
    def total(play):
        if play["v"] > NAMES_MAX:
            yield Row(m=kind(play["v"]))

    return App("games", routers=[router])


@pytest.mark.parametrize("into", [STATS, Key("TOTAL", "R")])
def test_a_handler_that_makes_up_names_takes_the_memory_of_no_other(into):
    app = making_up_names(Sum, into)
    state = State(app)
    for start in range(0, NAMES_MAX + 200, 100):
        assert state.process(app, *(state.play(number, number) for number in range(start, start + 100))) == []
    assert len(state.kinds()["days"]) == NAMES_MAX
    assert state.kinds(into)["total"] == {"m": "Sum"}
    (error,) = state.process(making_up_names(Max, into), state.play(1, NAMES_MAX + 1))
    assert "and before as Sum: one attribute of a target has one form" in error
    assert all(warning.startswith("Handler 'days' yields more attributes of main: GAME#") for warning in state.warned)
    assert state.warned != []


def test_long_names_are_remembered_up_to_a_size_that_an_item_takes():
    app = app_of(lambda play: {"\N{GREEK SMALL LETTER ALPHA}" * 1_000 + str(play["v"]): Count()})
    state = State(app)
    assert state.process(app, *(state.play(number, number) for number in range(40))) == []
    assert 0 < len(json.dumps(state.kinds(), ensure_ascii=False).encode()) <= NAMES_BYTES_MAX
    assert len(state.warned) == 1
