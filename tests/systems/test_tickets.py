"""The help desk: names on tickets and open tickets of teams, from the tickets, agents and projects at the end."""

from collections import defaultdict

import pytest

from handlers import app
from handlers.tickets import AGENT, PROJECT, TEAM_TICKETS, TICKET, names_on_ticket, open_tickets
from streamfold import Count, Min, Row
from streamfold.testing import Twin
from tests.systems import BATCHES, Replayed, without_key


@pytest.fixture(scope="module", params=BATCHES)
def desk(request):
    return Replayed("tickets", batch_records=request.param)


@pytest.fixture(scope="module")
def tickets(desk):
    return desk.items(TICKET)


def named(desk, ticket):
    """A ticket with the names of those that it refers to, where they are there."""
    agent = desk.items(AGENT).get((ticket.get("assigned_to"),))
    project = desk.items(PROJECT).get((ticket.get("project_id"),))
    return (
        without_key(TICKET, ticket)
        | ({"assignee_name": agent["name"]} if agent else {})
        | ({"project_name": project["name"]} if project else {})
    )


def test_a_ticket_shows_the_names_of_its_assignee_and_its_project(desk, tickets):
    expected = {fields: named(desk, ticket) for fields, ticket in tickets.items()}
    assert desk.rows(TICKET) == expected
    assert len({("assignee_name" in row, "project_name" in row) for row in expected.values()}) == 4


def test_a_team_counts_the_open_tickets_of_its_agents(desk, tickets):
    teams = {name: agent["team"] for (name,), agent in desk.items(AGENT).items()}
    opened = defaultdict(list)
    for ticket in tickets.values():
        if ticket["status"] == "open" and ticket.get("assigned_to") in teams:
            opened[teams[ticket["assigned_to"]]].append(ticket["opened"])
    assert len(opened) > 1
    assert desk.rows(TEAM_TICKETS) == {
        (team,): {"tickets": len(times), "oldest": min(times)} for team, times in opened.items()
    }


def test_the_recording_has_what_makes_lookups_hard(desk):
    tickets, agents = desk.images(TICKET), desk.images(AGENT)
    begun, hired = desk.first_records(TICKET), desk.first_records(AGENT)
    assert any(begun[fields] < hired.get((images[0].get("assigned_to"),), 0) for fields, images in tickets.items())
    assignees = [{image.get("assigned_to") for image in images if image} for images in tickets.values()]
    assert any(len(names) > 2 for names in assignees), "no reference moves"
    assert any(None in images[:-1] for images in agents.values()), "no agent comes back"
    assert any(images[-1] is None for images in desk.images(PROJECT).values()), "no project is gone"
    teams = [{image["team"] for image in images if image} for images in agents.values()]
    assert any(len(each) > 1 for each in teams), "no agent changes teams"


def test_tickets_of_an_agent_who_leaves_are_open_for_nobody_until_the_agent_is_back():
    twin = Twin(app)
    twin.put(TICKET, ticket_id="1", assigned_to="ada", status="open", opened="2026-03-01T08:00:00Z")
    assert twin.rows(TEAM_TICKETS) == []
    for team in ("first line", "field"):
        twin.put(AGENT, agent_id="ada", name="Ada", team=team)
        assert [row["tickets"] for row in twin.rows(TEAM_TICKETS)] == [1]
        assert twin.row(TICKET, ticket_id="1")["assignee_name"] == "Ada"
        twin.delete(AGENT, agent_id="ada")
        assert twin.rows(TEAM_TICKETS) == []
        assert "assignee_name" not in twin.row(TICKET, ticket_id="1")


def test_a_ticket_of_nobody_and_of_no_project_shows_no_names():
    assert names_on_ticket({}, None, None) is None
    assert names_on_ticket({}, {"name": "Ada"}, None) == Row(assignee_name="Ada")


def test_a_closed_ticket_is_nobodys_work():
    ticket = {"status": "open", "opened": "2026-03-01T08:00:00Z"}
    assert open_tickets(ticket, {"team": "field"}) == Row(team="field", tickets=Count(), oldest=Min(ticket["opened"]))
    assert open_tickets({"status": "closed"}, {"team": "field"}) is None
