"""A help desk: tickets are opened, assigned, passed on, closed and opened again. Agents change names and teams, leave
and come back. Projects are named late, and one never.
"""

from tests.workload import Workload, change, key, transact

STEPS = 300
AGENTS = {"ada": "Ada Obi", "bo": "Bo Lind", "cy": "Cy Park", "dee": "Dee Novák", "eli": "Eli Haddad"}
PROJECTS = {"p1": "Website", "p2": "Billing", "p3": "Warehouse"}
TEAMS = ("first line", "accounts", "field")
TOPICS = ("login", "invoice", "printer", "delivery", "password", "refund")


class HelpDesk(Workload):
    """The desk's own view of its table, so that every next step follows from the seed alone."""

    def __init__(self, table, seed):
        super().__init__(table, seed)
        self.agents = {}
        self.projects = {}
        self.tickets = {}
        self.count = 0

    def ticket_key(self, ticket_id):
        return key(f"TICKET#{ticket_id}", "METADATA")

    def agent_key(self, agent_id):
        return key(f"AGENT#{agent_id}", "PROFILE")

    def project_key(self, project_id):
        return key(f"PROJECT#{project_id}", "METADATA")

    def any_ticket(self):
        return self.random.choice(sorted(self.tickets)) if self.tickets else None

    def any_of(self, things):
        return self.random.choice(sorted(things))

    # --- tickets

    def open(self):
        """Opens a ticket, with an assignee and a project or without, whether or not their items are there."""
        self.count += 1
        ticket_id = f"t{self.count:03d}"
        item = {"topic": self.random.choice(TOPICS), "status": "open", "opened": self.clock.advance(90)}
        if self.random.random() < 0.7:
            item["assigned_to"] = self.any_of(AGENTS)
        if self.random.random() < 0.6:
            item["project_id"] = self.any_of(PROJECTS)
        self.tickets[ticket_id] = item
        self.table.put_item(Item={**self.ticket_key(ticket_id), **item})

    def amend(self, remove=(), **values):
        if ticket_id := self.any_ticket():
            self.table.update_item(**change(self.ticket_key(ticket_id), remove, **values))

    def assign(self):
        self.amend(assigned_to=self.any_of(AGENTS))

    def give_back(self):
        self.amend(["assigned_to"])

    def file(self):
        """Puts a ticket into a project, or out of all, where an empty text is written too."""
        self.amend(project_id=self.random.choice((*PROJECTS, "")))

    def close(self):
        self.amend(status="closed")

    def open_again(self):
        self.amend(status="open")

    def retell(self):
        """A change that no row shows."""
        self.amend(topic=self.random.choice(TOPICS))

    def remove(self):
        if ticket_id := self.any_ticket():
            del self.tickets[ticket_id]
            self.table.delete_item(Key=self.ticket_key(ticket_id))

    # --- agents and projects

    def hire(self):
        """An agent comes, or comes back, in any team."""
        if missing := AGENTS.keys() - self.agents.keys():
            agent_id = self.any_of(missing)
            self.agents[agent_id] = {"name": AGENTS[agent_id], "team": self.random.choice(TEAMS), "phone": "100"}
            self.table.put_item(Item={**self.agent_key(agent_id), **self.agents[agent_id]})

    def amend_agent(self, **values):
        if self.agents:
            self.table.update_item(**change(self.agent_key(self.any_of(self.agents)), **values))

    def change_team(self):
        self.amend_agent(team=self.random.choice(TEAMS))

    def change_name(self):
        self.amend_agent(name=f"{self.random.choice(sorted(AGENTS)).title()} {self.random.choice(('Sato', 'Berg'))}")

    def change_phone(self):
        """A change that no lookup reads."""
        self.amend_agent(phone=f"{self.random.randint(100, 999)}")

    def leave(self):
        """An agent leaves alone: the tickets stay assigned."""
        if len(self.agents) > 2:
            agent_id = self.any_of(self.agents)
            del self.agents[agent_id]
            self.table.delete_item(Key=self.agent_key(agent_id))

    def change_both(self):
        """An agent and a ticket of his change in one transaction."""
        ticket_id = self.any_ticket()
        if ticket_id and self.agents:
            agent_id = self.any_of(self.agents)
            team = change(self.agent_key(agent_id), team=self.random.choice(TEAMS), name=f"{agent_id.title()} Ray")
            taken = change(self.ticket_key(ticket_id), assigned_to=agent_id, status="open")
            transact(self.table, ("Update", taken), ("Update", team))

    def name_project(self):
        project_id = self.random.choice(sorted(PROJECTS)[:2])  # the third project is never there
        self.projects[project_id] = PROJECTS[project_id] + self.random.choice(("", " 2", ", new"))
        self.table.put_item(Item={**self.project_key(project_id), "name": self.projects[project_id]})

    def end_project(self):
        if self.projects:
            project_id = self.any_of(self.projects)
            del self.projects[project_id]
            self.table.delete_item(Key=self.project_key(project_id))


STEP_WEIGHTS = {
    HelpDesk.open: 14,
    HelpDesk.assign: 10,
    HelpDesk.give_back: 3,
    HelpDesk.file: 6,
    HelpDesk.close: 8,
    HelpDesk.open_again: 3,
    HelpDesk.retell: 2,
    HelpDesk.remove: 3,
    HelpDesk.hire: 4,
    HelpDesk.change_team: 5,
    HelpDesk.change_name: 4,
    HelpDesk.change_phone: 2,
    HelpDesk.leave: 3,
    HelpDesk.change_both: 4,
    HelpDesk.name_project: 5,
    HelpDesk.end_project: 2,
}


def run(table, seed):
    """Opens a few tickets before there are agents, and then takes as many steps as ``STEPS`` says."""
    desk = HelpDesk(table, seed)
    for _ in range(6):
        desk.open()
    desk.take_steps(STEP_WEIGHTS, STEPS)
