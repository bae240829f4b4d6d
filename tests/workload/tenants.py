"""Workspaces that know nothing of each other: the same names of projects, tasks and members in all of them."""

from tests.workload import Workload, change, key

STEPS = 300
WORKSPACES = ("north", "south", "harbour")
MEMBERS = ("ana", "bo", "cy", "dee", "eli")
STATES = ("todo", "doing", "done")
PROJECTS_MAX = 3
WORDS = ("roof", "invoice", "garden", "server", "party", "audit")


class Boards(Workload):
    """All workspaces' own view of the table, so that every next step follows from the seed alone."""

    def __init__(self, table, seed):
        super().__init__(table, seed)
        self.opened = dict.fromkeys(WORKSPACES, 0)
        self.projects = {workspace: {} for workspace in WORKSPACES}

    def partition(self, workspace, project):
        return f"{workspace}#PROJECT#{project}"

    def title(self):
        return " ".join(self.random.sample(WORDS, k=self.random.randint(1, 3)))

    def open_project(self):
        """Opens a project, unless the workspace has enough. Its name is used once, and by other workspaces too."""
        workspace = self.random.choice(WORKSPACES)
        if len(self.projects[workspace]) < PROJECTS_MAX:
            self.opened[workspace] += 1
            project = f"p{self.opened[workspace]}"
            self.projects[workspace][project] = 0, []
            item = {**key(self.partition(workspace, project), "METADATA"), "title": self.title()}
            self.table.put_item(Item={**item, "opened": self.clock.advance(90)})

    def any_project(self):
        """A project's workspace and name, or None while there are no projects."""
        pairs = [(workspace, project) for workspace in WORKSPACES for project in self.projects[workspace]]
        return self.random.choice(pairs) if pairs else None

    def add_task(self):
        if place := self.any_project():
            workspace, project = place
            count, tasks = self.projects[workspace][project]
            self.projects[workspace][project] = count + 1, [*tasks, f"t{count + 1}"]
            item = {**key(self.partition(*place), f"TASK#t{count + 1}"), "title": self.title(), "state": STATES[0]}
            members = self.random.sample(MEMBERS, k=self.random.randint(0, 2))
            hours = {"hours": self.random.randint(1, 16), "at": self.clock.advance(60)}
            self.table.put_item(Item={**item, **hours, **({"members": set(members)} if members else {})})

    def any_task(self):
        place = self.any_project()
        tasks = self.projects[place[0]][place[1]][1] if place else []
        return (place, self.random.choice(tasks)) if tasks else None

    def amend(self, **values):
        if found := self.any_task():
            place, task = found
            self.table.update_item(**change(key(self.partition(*place), f"TASK#{task}"), **values))

    def move(self):
        self.amend(state=self.random.choice(STATES))

    def assign(self):
        self.amend(members=set(self.random.sample(MEMBERS, k=self.random.randint(1, 3))))

    def estimate(self):
        self.amend(hours=self.random.randint(1, 40))

    def remove_task(self):
        if found := self.any_task():
            (workspace, project), task = found
            self.projects[workspace][project][1].remove(task)
            self.table.delete_item(Key=key(self.partition(workspace, project), f"TASK#{task}"))

    def drop_project(self):
        """Removes a project and leaves its tasks to the cascade, which is not there while this is recorded."""
        if place := self.any_project():
            workspace, project = place
            del self.projects[workspace][project]
            self.table.delete_item(Key=key(self.partition(*place), "METADATA"))


STEP_WEIGHTS = {
    Boards.open_project: 4,
    Boards.add_task: 14,
    Boards.move: 12,
    Boards.assign: 6,
    Boards.estimate: 3,
    Boards.remove_task: 3,
    Boards.drop_project: 1,
}


def run(table, seed):
    """Takes as many steps as ``STEPS`` says."""
    Boards(table, seed).take_steps(STEP_WEIGHTS, STEPS)
