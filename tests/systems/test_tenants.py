"""Task boards: what every workspace has, from its own projects and tasks alone, and what was removed is archived."""

from collections import Counter, defaultdict

import pytest

from handlers.tenants import ASSIGNED, BOARD, HISTORY, PROJECT, TASK, USAGE, app
from streamfold.read import archived
from tests.systems import Replayed


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
