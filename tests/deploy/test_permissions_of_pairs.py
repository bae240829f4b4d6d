"""Every kind beside every other, in one group or in two: whole histories, each call by the policy that is printed."""

from contextlib import ExitStack
from types import ModuleType

import pytest

from streamfold.deploy.functions import Deployment
from streamfold.deploy.permissions import Role, permissions
from streamfold.deploy.sam import SamTemplate
from tests.helpers.pairs_of_kinds import KINDS, PAIRS, sample_of
from tests.helpers.played_permissions import Played
from tests.helpers.sample_applications import made

EVERY = 13
"""CI plays every so many pairs, half of them in two groups; every night has all."""
OF_DELTAS = {f"dynamodb:{action}Item" for action in ("BatchGet", "Update", "Delete", "ConditionCheck")}
"""What a group with deltas may do to the rows of another group (docs/permissions.md, Shared rows)."""


PLAYED = [
    pytest.param(
        one,
        other,
        number % 2 == 1,
        id=f"{one} and {other}",
        marks=pytest.mark.nightly if number % EVERY else pytest.mark.ci,
    )
    for number, (one, other) in enumerate(PAIRS)
]


def printed(app):
    """The template of an application."""
    module = ModuleType("pair")
    module.lambda_handler, module.jobs_handler = app.lambda_handler, app.jobs_handler
    module.verify_handler = app.verify_handler
    return SamTemplate(Deployment(app, module))


def denied(template, runner, taken):
    """The calls that the printed policy of a function, or of a person's role, does not allow."""
    functions = {each.runner: each for each in template.functions}
    function = functions.get(runner)
    given = template.role(runner.kind)["Statement"] if function is None else template.statements(function)
    statements = [each for each in given if "Action" in each]

    def is_allowed(call):
        place = template.resource_of_place(call.place, function)
        return any(call.action in each["Action"] and each["Resource"] == place for each in statements)

    return sorted(call for call in taken if not is_allowed(call))


@pytest.mark.parametrize(("one", "other", "two_groups"), PLAYED)
def test_printed_policies_of_two_kinds_allow_each_call_of_whole_histories(aws, one, other, two_groups):
    sample = sample_of(one, other, two_groups=two_groups)
    with ExitStack() as stack:
        played = Played(sample.app, stack, **sample.settings)
        played.play(sample)
    template = printed(sample.app)
    assert played.taken
    for runner, taken in played.taken.items():
        assert denied(template, runner, taken) == [], runner


@pytest.mark.nightly
@pytest.mark.parametrize(("one", "other", "two_groups"), PLAYED)
def test_printed_roles_of_people_allow_each_call_for_two_kinds(aws, one, other, two_groups):
    sample = sample_of(one, other, two_groups=two_groups)
    with ExitStack() as stack:
        played = Played(sample.app, stack, **sample.settings)
        played.people(sample)
    template = printed(sample.app)
    for role in (Role("operate"), Role("read")):
        assert denied(template, role, played.taken[role]) == []


@pytest.mark.parametrize(("one", "other"), PAIRS)
def test_two_kinds_are_granted_what_each_alone_is_and_no_more(one, other):
    """Each grant of a kind alone is used (``test_permissions.py``), so that no history lacks a use of these."""
    both = sample_of(one, other, two_groups=False).app
    alone = [made(KINDS[each][0]) for each in (one, other)]
    for kind in ("stream", "queue", "verifier", "operate", "read"):
        runner = Role(kind)
        more = permissions(both, runner) - permissions(alone[0], runner) - permissions(alone[1], runner)
        assert {action for action, place in more if place.kind == "table"} <= OF_DELTAS, runner
        assert {place.kind for _, place in more} <= {"table"}, runner
