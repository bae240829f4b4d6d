"""The help desk: tickets show the names of their assignee and their project, and each team what is open.

A ticket may have neither. A name that changes, and an agent who changes teams, reach all of their tickets.

The deadlines of tickets are an application of their own, because its rows change as time passes:
``streamfold replay events/desk/deadlines.jsonl --app handlers.tickets:app`` runs it.
"""

from datetime import datetime, timedelta

from streamfold import Add, App, Count, Item, Key, Lookup, Min, Now, Router, Row, Timer, local_day_bounds

TICKET = Key("TICKET#{ticket_id}", "METADATA")
AGENT = Key("AGENT#{agent_id}", "PROFILE")
PROJECT = Key("PROJECT#{project_id}", "METADATA")
TEAM_TICKETS = Key("TEAM#{team}", "TICKETS")
TEAM_OVERDUE = Key("TEAM#{team}", "OVERDUE")
DUE_TODAY = Key("DESK#DUE_TODAY", "TICKET#{ticket_id}")
SILENT = Key("DESK#SILENT", "TICKET#{ticket_id}")
ESCALATED = Key("TOPIC#{topic}", "ESCALATED")
ZONE = "Europe/Zurich"
ANSWER_WITHIN, ESCALATE_AFTER = timedelta(days=3), timedelta(hours=4)

router = Router()
deadlines = Router()


@router.attributes(
    TICKET,
    lookup={
        "assignee": Lookup(AGENT, agent_id="assigned_to", optional=True, reads=["name"]),
        "project": Lookup(PROJECT, optional=True, reads=["name"]),  # by the ticket's attribute project_id
    },
)
def names_on_ticket(ticket: Item, assignee: Item | None, project: Item | None) -> Row | None:
    found = {"assignee_name": assignee, "project_name": project}
    names = {attribute: referent["name"] for attribute, referent in found.items() if referent}
    return Row(**names) if names else None


@router.view(TICKET, into=TEAM_TICKETS, lookup={"assignee": Lookup(AGENT, agent_id="assigned_to", reads=["team"])})
def open_tickets(ticket: Item, assignee: Item) -> Row | None:
    if ticket["status"] != "open":
        return None
    return Row(team=assignee["team"], tickets=Count(), oldest=Min(ticket["opened"]))


@deadlines.view(TICKET, into=TEAM_OVERDUE, lookup={"assignee": Lookup(AGENT, agent_id="assigned_to", reads=["team"])})
def overdue_tickets(ticket: Item, assignee: Item, now: Now) -> Row | None:
    if ticket["status"] != "open" or not now.passed(ticket.get("due_at")):
        return None
    return Row(team=assignee["team"], tickets=Count(), oldest=Min(ticket["due_at"]))


@deadlines.index(TICKET, into=DUE_TODAY)  # an item wakes at the begin and at the end of its own day
def due_today(ticket: Item, now: Now) -> Row | None:
    if ticket["status"] != "open" or not ticket.get("due_at"):
        return None
    is_today = now.between(*local_day_bounds(ticket["due_at"], ZONE))
    return Row(topic=ticket["topic"], due_at=ticket["due_at"]) if is_today else None


@deadlines.index(TICKET, into=SILENT)
def silent_customers(ticket: Item, now: Now) -> Row | None:
    if ticket["status"] != "waiting" or not now.passed(ticket["asked_at"], after=ANSWER_WITHIN):
        return None
    return Row(topic=ticket["topic"], since=ticket["asked_at"])


def escalates_at(ticket: Item) -> datetime | None:
    if ticket["status"] != "open" or not ticket.get("due_at"):
        return None
    return datetime.fromisoformat(ticket["due_at"]) + ESCALATE_AFTER


@deadlines.on(TICKET, at=escalates_at, into=ESCALATED)  # once for each deadline of a ticket that is missed by hours
def escalate(timer: Timer) -> Add:
    return Add(topic=timer.item["topic"], tickets=1)


app = App("deadlines", routers=[deadlines])
lambda_handler = app.lambda_handler
jobs_handler = app.jobs_handler
verify_handler = app.verify_handler
