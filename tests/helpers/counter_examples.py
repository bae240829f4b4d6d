"""The shortest histories that a weaker guard is known to go wrong on, on any engine.

``test_commit.py`` runs them on the embedded engine, ``engine/test_commit_on_local.py`` on DynamoDB Local. Those of
repairs are in ``test_repair.py``.
"""

from streamfold import App, Key, Router, Row
from streamfold.errors import EngineUnavailable
from tests.helpers.expenses import EXPENSE


def believed_dead(landing):
    """Takes no call: each lands when it is called in ``landing``."""

    def trouble(writes, go):
        landing.append(go)
        raise EngineUnavailable("no answer")

    return trouble


def answer_lost(writes, go):
    go()
    raise EngineUnavailable("no answer")


def payers():
    """An application in which expenses claim their payer."""
    router = Router()

    @router.index(EXPENSE, into=Key("PAYER#{payer}", "TOTAL"), unique=True)
    def by_payer(item, expense_id):
        yield Row(payer=item["payer"], expense=expense_id)

    return App("shop", routers=[router])


class CounterExamples:
    """Wants the fixtures ``setting``, which makes a ``Setting`` of an application, and ``at``, that of ``make_app``."""

    def test_removal_that_has_nothing_to_take_back_moves_the_version_on(self, at):
        given_up = at.expense(1, "a")
        at.deliver(at.no_expense(1))
        at.deliver(given_up)
        assert at.holds_what_the_records_say()

    def test_batch_that_leads_back_to_where_it_began_takes_back_what_a_lost_answer_left(self, at):
        at.deliver(at.expense(1, "a"), at.expense(2, "a"))  # so that its row refuses nothing
        there = at.expense(1, "b")
        at.deliver(there, trouble=answer_lost)
        assert at.deliver(there, at.expense(1, "a")) == []
        assert at.holds_what_the_records_say()

    def test_row_that_an_item_took_from_another_and_left_is_the_others_again(self, setting):
        at = setting(payers())
        late = at.expense(0)
        at.deliver(at.expense(1))
        at.deliver(late)
        assert at.row("PAYER#p")["conflict"] == [{"expense": "1"}]
        assert at.holds_what_the_records_say()
        at.deliver(at.no_expense(0))
        assert at.row("PAYER#p")["expense"] == "1"
        assert at.holds_what_the_records_say()

    def test_change_that_lands_after_it_was_taken_back_is_refused(self, at):
        at.deliver(at.expense(1, "a"), at.expense(2, "a"))  # so that its row refuses nothing
        there, landing = at.expense(1, "b"), []
        at.deliver(there, trouble=believed_dead(landing))
        at.deliver(there, at.expense(1, "a"))
        assert [land() is None for land in landing] == [False]
        assert at.holds_what_the_records_say()

    def test_change_that_lands_after_its_item_is_gone_is_refused(self, at):
        put, landing = at.expense(1, "a"), []
        at.deliver(put, trouble=believed_dead(landing))
        at.deliver(put, at.no_expense(1))
        assert [land() is None for land in landing] == [False]
        assert at.holds_what_the_records_say()

    def test_change_whose_predecessor_was_given_up_takes_back_only_what_was_stored(self, at):
        given_up = at.expense(1, "a")
        at.deliver(at.expense(1, "b"))
        assert at.holds_what_the_records_say()
        at.deliver(given_up)
        assert at.holds_what_the_records_say()
