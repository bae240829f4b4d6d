"""Workspaces that know nothing of each other: the same names of projects, tasks and members in all of them."""

from datetime import datetime

from streamfold.keys.field import ULID_TIME_LENGTH, ulid_of
from tests.workload import Workload, change, key

STEPS, ACTIVITY_STEPS = 300, 180
WORKSPACES = ("north", "south", "harbour")
MEMBERS = ("ana", "bo", "cy", "dee", "eli")
STATES = ("todo", "doing", "done")
PROJECTS_MAX = 3
PROJECTS = ("p1", "p2")
KINDS = ("comment", "move", "upload")
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


class Activity(Workload):
    """What happens in projects, and who watches them; the projects themselves are of no matter."""

    def __init__(self, table, seed):
        super().__init__(table, seed)
        self.told = []
        self.watched = set()

    def place(self, told):
        workspace, project, at, number = told
        return key(f"{workspace}#PROJECT#{project}", f"ACTIVITY#{ulid(at, number)}")

    def tell(self):
        at = datetime.fromisoformat(self.clock.advance(120))
        self.told.append((self.random.choice(WORKSPACES), self.random.choice(PROJECTS), at, len(self.told)))
        item = {"kind": self.random.choice(KINDS), "by": self.random.choice(MEMBERS), "at": self.clock.text()}
        words = {"text": " ".join(self.random.sample(WORDS, k=2))} if self.random.random() < 0.7 else {}
        self.table.put_item(Item={**self.place(self.told[-1]), **item, **words})

    def correct(self):
        if self.told:
            place = self.place(self.random.choice(self.told))
            words = " ".join(self.random.sample(WORDS, k=2))
            self.table.update_item(**change(place, text=words))

    def withdraw(self):
        if self.told:
            told = self.random.choice(self.told)
            self.told.remove(told)
            self.table.delete_item(Key=self.place(told))

    def watch(self):
        """Watches a project, or one that was left before, all of it or some kinds."""
        pair = self.random.choice(WORKSPACES), self.random.choice(MEMBERS), self.random.choice(PROJECTS)
        self.watched.add(pair)
        kinds = {"kinds": sorted(self.random.sample(KINDS, k=2))} if self.random.random() < 0.4 else {}
        self.table.put_item(Item={**watch_key(*pair), "since": self.clock.advance(60), **kinds})

    def leave(self):
        if self.watched:
            pair = self.random.choice(sorted(self.watched))
            self.watched.remove(pair)
            self.table.delete_item(Key=watch_key(*pair))


def watch_key(workspace, member, project):
    return key(f"{workspace}#MEMBER#{member}", f"WATCHES#{project}")


def ulid(at, number):
    """A ULID of this time; the number stands in the place of chance."""
    return ulid_of(int(at.timestamp() * 1000))[:ULID_TIME_LENGTH] + f"{number:016d}"


ACTIVITY_WEIGHTS = {
    Activity.tell: 12,
    Activity.correct: 4,
    Activity.withdraw: 2,
    Activity.watch: 6,
    Activity.leave: 3,
}


def run_activity(table, seed):
    """Takes as many steps as ``ACTIVITY_STEPS`` says."""
    Activity(table, seed).take_steps(ACTIVITY_WEIGHTS, ACTIVITY_STEPS)
