"""The deadlines of a help desk, over some five weeks: tickets become due, wait for their customers, and are put off or
brought forward. Nights, weekends and a change of the clocks pass without a write.
"""

from tests.workload import change, transact
from tests.workload.tickets import AGENTS, TEAMS, TOPICS, HelpDesk

STEPS = 320
PAUSE_MINUTES_MAX = 240
DAY_MINUTES = 24 * 60


class DeadlineDesk(HelpDesk):
    """A help desk whose tickets have deadlines. Each step is some minutes behind the one before it."""

    def take_steps(self, weights, count=1):
        for _ in range(count):
            self.clock.advance(PAUSE_MINUTES_MAX)
            super().take_steps(weights)

    def deadline(self, days_max=6):
        """A moment from yesterday on, in quarters of an hour; one in eight has none, as an empty text."""
        if self.random.random() < 0.125:
            return ""
        quarters = self.random.randint(-DAY_MINUTES // 15, days_max * DAY_MINUTES // 15)
        return self.clock.text(days=quarters * 15 / DAY_MINUTES)

    def open(self):
        self.count += 1
        ticket_id = f"t{self.count:03d}"
        item = {"topic": self.random.choice(TOPICS), "status": "open", "due_at": self.deadline()}
        if self.random.random() < 0.8:
            item["assigned_to"] = self.any_of(AGENTS)
        if self.random.random() < 0.1:
            del item["due_at"]
        self.tickets[ticket_id] = item
        self.table.put_item(Item={**self.ticket_key(ticket_id), **item})

    def put_off(self):
        self.amend(due_at=self.deadline(days_max=12))

    def bring_forward(self):
        self.amend(due_at=self.clock.text(days=self.random.randint(0, 8) / 16))

    def due_on_this_minute(self):
        """The moment is that of the record."""
        self.amend(due_at=self.clock.text(), status="open")

    def ask(self):
        """The desk asks the customer, and waits; it may ask again, which moves the moment."""
        self.amend(status="waiting", asked_at=self.clock.text())

    def hear(self):
        self.amend(["asked_at"], status="open")

    def hand_over(self):
        """A ticket goes to an agent who changes teams in the same transaction."""
        ticket_id = self.any_ticket()
        if ticket_id and self.agents:
            agent_id = self.any_of(self.agents)
            team = change(self.agent_key(agent_id), team=self.random.choice(TEAMS))
            taken = change(self.ticket_key(ticket_id), assigned_to=agent_id, due_at=self.clock.text(days=0.25))
            transact(self.table, ("Update", taken), ("Update", team))

    def rest(self):
        """Nothing is written for up to three days."""
        self.clock.advance(3 * DAY_MINUTES)


STEP_WEIGHTS = {
    DeadlineDesk.open: 16,
    DeadlineDesk.assign: 6,
    DeadlineDesk.give_back: 2,
    DeadlineDesk.put_off: 10,
    DeadlineDesk.bring_forward: 6,
    DeadlineDesk.due_on_this_minute: 2,
    DeadlineDesk.ask: 12,
    DeadlineDesk.hear: 6,
    DeadlineDesk.close: 8,
    DeadlineDesk.open_again: 4,
    DeadlineDesk.retell: 3,
    DeadlineDesk.remove: 4,
    DeadlineDesk.hire: 4,
    DeadlineDesk.change_team: 5,
    DeadlineDesk.change_phone: 1,
    DeadlineDesk.leave: 2,
    DeadlineDesk.hand_over: 3,
    DeadlineDesk.rest: 1,
}


def run(table, seed):
    """Opens a few tickets before there are agents, and then takes as many steps as ``STEPS`` says."""
    desk = DeadlineDesk(table, seed)
    for _ in range(4):
        desk.clock.advance(PAUSE_MINUTES_MAX)
        desk.open()
    desk.take_steps(STEP_WEIGHTS, STEPS)
