"""The help desk: tickets show the names of their assignee and their project, and each team what is open.

A ticket may have neither. A name that changes, and an agent who changes teams, reach all of their tickets.
"""

from streamfold import Count, Item, Key, Lookup, Min, Router, Row

TICKET = Key("TICKET#{ticket_id}", "METADATA")
AGENT = Key("AGENT#{agent_id}", "PROFILE")
PROJECT = Key("PROJECT#{project_id}", "METADATA")
TEAM_TICKETS = Key("TEAM#{team}", "TICKETS")

router = Router()


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
