"""Task boards: what every workspace has, from its own projects and tasks alone, and what was removed is archived."""

from collections import Counter, defaultdict

import pytest

from handlers.tenants import ACTIVITY, ASSIGNED, BOARD, HISTORY, NEWS, PROJECT, TASK, USAGE, WATCH, app, news
from streamfold.derivations.feed.options import MOST
from streamfold.keys.field import ulid_milliseconds
from streamfold.read import archived
from streamfold.read.feeds import route_of
from streamfold.records.values import decode
from tests.helpers.held_feeds import HeldFeeds, read_all
from tests.systems import Replayed
from tests.workload.tenants import MEMBERS, WORKSPACES


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return f"file:{tmp_path_factory.mktemp('removed')}"


@pytest.fixture(scope="module")
def boards(place):
    return Replayed("tenants/tasks", app, archive=place)


@pytest.fixture(scope="module")
def projects(boards):
    return boards.items(PROJECT)


@pytest.fixture(scope="module")
def tasks(boards, projects):
    """The tasks of the projects that are left: those of the others go, although the recording holds them still."""
    return {fields: task for fields, task in boards.items(TASK).items() if fields[:2] in projects}


def test_workspaces_use_the_same_names(tasks):
    workspaces = defaultdict(set)
    for workspace, project, task in tasks:
        workspaces[project, task].add(workspace)
    assert any(len(users) > 1 for users in workspaces.values())


def test_projects_take_their_tasks_along(boards, tasks):
    assert len(tasks) < len(boards.items(TASK))
    assert set(boards.rows(TASK)) == set(tasks)  # the store holds the source items too


def test_a_board_counts_the_tasks_of_its_project(boards, tasks):
    expected = defaultdict(Counter)
    for (workspace, project, _), task in tasks.items():
        expected[workspace, project, task["state"]] += Counter(tasks=1, hours=task["hours"])
    assert boards.rows(BOARD) == expected


def test_members_find_the_tasks_of_their_own_workspace(boards, tasks):
    expected = {
        (workspace, member, project, name): {"title": task["title"], "state": task["state"]}
        for (workspace, project, name), task in tasks.items()
        for member in task.get("members", ())
    }
    assert boards.rows(ASSIGNED) == expected


def test_a_workspace_is_billed_for_what_it_has(boards, projects, tasks):
    expected = defaultdict(Counter)
    for (workspace, *_), item in [*projects.items(), *tasks.items()]:
        expected[workspace,] += Counter(items=1, characters=len(item["title"]))
    assert boards.rows(USAGE) == expected


def test_the_history_of_a_project_is_its_workspaces(boards):
    histories = boards.rows(HISTORY)
    assert len(histories) == sum(map(len, boards.images(PROJECT).values()))
    assert all(item.startswith(f"{workspace}#PROJECT#") for workspace, item, _ in histories)


def test_removed_tasks_are_archived_those_of_removed_projects_too(boards, tasks, place):
    gone = set(boards.images(TASK)) - set(tasks)
    assert {tuple(TASK.match(kept.item).values()) for kept in archived(place, "removed_tasks")} == gone


@pytest.fixture(scope="module")
def activity():
    return Replayed("tenants/activity", app)


@pytest.fixture(scope="module")
def held(activity):
    """The model of what members are to see, from the records alone; and the time of the last."""

    def shown(told, watch):
        wanted = "kinds" not in watch or told["kind"] in watch["kinds"]
        return (told["kind"], told["by"], told.get("text", "")) if wanted else None

    model, now = HeldFeeds(shown, 90, MOST), 0
    for record in activity.records:
        item, now = decode({"M": record.get("NewImage", {})}) or None, record["ApproximateCreationDateTime"]
        place = decode({"M": record["Keys"]})
        if told := ACTIVITY.match(place):
            identity = told["activity_id"]
            model.post((told["workspace"], told["project"]), ulid_milliseconds(identity) / 1000, identity, item)
        elif watch := WATCH.match(place):
            reader, project = (watch["workspace"], watch["member"]), (watch["workspace"], watch["project"])
            model.edge(reader, project, item, now)
    return model, now


@pytest.mark.parametrize("workspace", WORKSPACES)
@pytest.mark.parametrize("member", MEMBERS)
def test_members_read_what_happens_in_the_projects_that_they_watch(activity, held, workspace, member):
    model, now = held
    found = []
    for row in read_all(route_of(news), activity.engine, {"workspace": workspace, "member": member}, now):
        key = NEWS.match(row)
        identity, author = key["activity_id"], (key["workspace"], key["project"])
        text = row["kind"], row["by"], row["text"]
        found.append((ulid_milliseconds(identity) / 1000, author, identity, text))
    model.check((workspace, member), found, now)


def test_workspaces_have_news_of_their_own(activity, held):
    model, now = held
    assert all(any(model.shown((workspace, member), now) for member in MEMBERS) for workspace in WORKSPACES)
    assert {row[0] for row in activity.rows(NEWS)} == set(WORKSPACES)
