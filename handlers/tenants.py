"""Task boards for many workspaces in one table, and nothing of one ever in another: an application of its own.

``streamfold replay events/tenants/tasks.jsonl --app handlers.tenants:app`` runs it.
"""

from collections.abc import Iterator

from streamfold import App, Count, Item, Key, Router, Row, Sum

PROJECT = Key("{workspace}#PROJECT#{project}", "METADATA")
TASK = Key("{workspace}#PROJECT#{project}", "TASK#{task}")
BOARD = Key("{workspace}#PROJECT#{project}", "BOARD#{state}")
ASSIGNED = Key("{workspace}#MEMBER#{member}", "TASK#{project}#{task}")
USAGE = Key("{workspace}#USAGE", "TOTAL")
HISTORY = Key("{workspace}#AUDIT#{item:rest}", "{version:rest}")

router = Router()
router.cascade(PROJECT, children=[TASK], name="project_tasks")
router.archive(TASK, to="s3://removed-tasks/boards", name="removed_tasks")  # or STREAMFOLD_ARCHIVE=file:FOLDER
router.audit(PROJECT, into=HISTORY)


@router.view(TASK, into=BOARD)
def board(task: Item) -> Row:
    return Row(state=task["state"], tasks=Count(), hours=Sum(task["hours"]))


@router.index(TASK, into=ASSIGNED)
def assigned_tasks(task: Item) -> Iterator[Row]:
    for member in sorted(task.get("members", ())):
        yield Row(member=member, title=task["title"], state=task["state"])


@router.view(PROJECT, TASK, into=USAGE)  # what a workspace is billed for
def usage(item: Item, workspace: str) -> Row:
    return Row(workspace=workspace, items=Count(), characters=Sum(len(item["title"])))


app = App("boards", routers=[router], tenant="workspace")
lambda_handler = app.lambda_handler
