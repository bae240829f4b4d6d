"""The doctor's lines of handlers that ask for the time: their schedule, and moments that nobody has seen."""

from datetime import UTC, datetime

import pytest

from streamfold import App, Count, Key, Lookup, Now, Put, Router, Row, Table
from streamfold.deploy.deployed import Account as Asked
from streamfold.deploy.deployed import LiveFunction
from streamfold.deploy.diagnosis import BAD, GOOD, UNSEEN
from streamfold.deploy.doctor import Doctor
from tests.helpers.account import Account

TIME = datetime(2026, 3, 1, 12, tzinfo=UTC)
MAIN = Table("main", ttl="expires")
router = Router()


@router.view(Key("TICKET#{ticket_id}", "META", MAIN), into=Key("TEAM#{team}", "OVERDUE", MAIN))
def overdue(ticket, now: Now):
    if now.passed(ticket["due_at"]):
        yield Row(team=ticket["team"], tickets=Count())


APP = App("shop", routers=[router])
CHECKS = {("spreader", "schedule"), ("state", "moments"), ("shop", "queue")}


@pytest.fixture
def account():
    return Account(now=TIME)


def lines(account, app=APP, names=("projector", "spreader")):
    asked = Asked(account.client)
    functions = [LiveFunction(asked, name) for name in names]
    return {(each.subject, each.check): each for each in Doctor(app, asked, functions, TIME.timestamp()).lines()}


def test_a_right_deployment_has_good_lines_only(account):
    found = lines(account)
    assert found.keys() >= CHECKS
    assert {str(each) for each in found.values() if each.state != GOOD} == set()


def state_of(account, name, **more):
    line = lines(account, **more)[next(each for each in CHECKS if name in each)]
    return line.state, line.found


@pytest.mark.parametrize(
    "rules",
    [{}, {"again": {"event": {"ring": True}, "state": "ENABLED"}}, {"other": {"event": None, "state": "ENABLED"}}],
)
def test_a_function_without_a_schedule_of_moments_is_bad(account, rules):
    account.rules = rules
    state, found = state_of(account, "schedule")
    assert (state, "no rule of EventBridge" in found) == (BAD, True)


def test_a_schedule_that_is_disabled_is_bad(account):
    account.rules["wake"]["state"] = "DISABLED"
    assert state_of(account, "schedule") == (
        BAD,
        "the rule that looks for moments is disabled: their rows never change by time",
    )


def test_a_moment_that_came_half_an_hour_ago_and_was_not_seen_is_bad(account):
    account.late_wakes = [("wake#shop#overdue", "2026-03-01T11:30:00.000000Z#0a")]
    state, found = state_of(account, "moments")
    assert (state, "items of overdue were to be derived again more than 10 minutes ago" in found) == (BAD, True)


def test_a_moment_that_has_just_come_is_good(account):
    account.late_wakes = [("wake#shop#overdue", "2026-03-01T11:58:00.000000Z#0a")]
    assert state_of(account, "moments")[0] == GOOD


def test_a_handler_that_no_function_runs_is_named(account):
    for each in account.functions.values():
        each["Environment"]["Variables"]["STREAMFOLD_HANDLERS_OFF"] = "overdue"
    account.late_wakes = [("wake#shop#overdue", "2026-03-01T11:30:00.000000Z#0a")]
    assert "no function here runs overdue" in state_of(account, "moments")[1]


@pytest.mark.parametrize("operation", ["list_rule_names_by_target", "list_targets_by_rule", "describe_rule"])
def test_a_refused_permission_is_not_allowed_to_look(account, operation):
    account.refused.add(operation)
    assert state_of(account, "schedule")[0] == UNSEEN


def test_an_application_without_a_function_of_its_queue_is_bad(account):
    state, found = state_of(account, "queue", names=["projector"])
    assert state == BAD
    assert "no function here works on a queue of theirs; nobody looks for moments of overdue" in found


def test_a_queue_whose_function_serves_another_group_is_none(account):
    account.functions["spreader"]["Environment"]["Variables"]["STREAMFOLD_GROUP"] = "search"
    assert state_of(account, "queue")[0] == BAD


def test_fan_outs_without_a_function_of_their_queue_are_bad_too(account):
    router, product = Router(), Key("PRODUCT#{product_id}", "META", MAIN)

    @router.view(
        Key("LINE#{line_id}", "META", MAIN), into=Key("SALES", "ALL", MAIN), lookup={"product": Lookup(product)}
    )
    def sales(line, product):
        yield Row(lines=Count())

    state, found = state_of(account, "queue", app=App("shop", routers=[router]), names=["projector"])
    assert (state, "fan-outs of sales stay open" in found) == (BAD, True)


def test_who_may_not_list_mappings_is_not_allowed_to_look_for_a_queue(account):
    account.refused.add("list_event_source_mappings")
    assert state_of(account, "queue")[0] == UNSEEN


def test_timers_need_a_function_of_the_queue_as_well(account):
    router = Router()

    @router.on(
        Key("TICKET#{ticket_id}", "META", MAIN), at=lambda ticket: ticket["at"], into=Key("R#{ticket_id}", "R", MAIN)
    )
    def remind(timer):
        return Put(at=timer.at)

    state, found = state_of(account, "queue", app=App("shop", routers=[router]), names=["projector"])
    assert (state, "remind.timer" in found, "fan-outs" in found) == (BAD, True, False)
