"""Task boards for many workspaces in one table, and nothing of one ever in another: an application of its own.

``streamfold replay events/tenants/tasks.jsonl --app handlers.tenants:app`` runs it, and so it does ``activity.jsonl``:
what happens in a project, in the feeds of the members who watch it.
"""

from collections.abc import Iterator

from streamfold import App, Count, Item, Key, Router, Row, Sum, Table

PROJECT = Key("{workspace}#PROJECT#{project}", "METADATA")
TASK = Key("{workspace}#PROJECT#{project}", "TASK#{task}")
BOARD = Key("{workspace}#PROJECT#{project}", "BOARD#{state}")
ASSIGNED = Key("{workspace}#MEMBER#{member}", "TASK#{project}#{task}")
USAGE = Key("{workspace}#USAGE", "TOTAL")
HISTORY = Key("{workspace}#AUDIT#{item:rest}", "{version:rest}")
ACTIVITY = Key("{workspace}#PROJECT#{project}", "ACTIVITY#{activity_id:ulid}")
WATCH = Key("{workspace}#MEMBER#{member}", "WATCHES#{project}")
NEWS = Key("{workspace}#NEWS#{member}", "{activity_id:ulid}#{project}", Table("main", ttl="expires"))

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


@router.feed(ACTIVITY, audience=WATCH, into=NEWS, keep_days=90)
def news(activity: Item, watch: Item) -> Row | None:
    if activity["kind"] in watch.get("kinds", [activity["kind"]]):
        return Row(kind=activity["kind"], by=activity["by"], text=activity.get("text", ""))
    return None


@router.view(PROJECT, TASK, into=USAGE)  # what a workspace is billed for
def usage(item: Item, workspace: str) -> Row:
    return Row(workspace=workspace, items=Count(), characters=Sum(len(item["title"])))


app = App("boards", routers=[router], tenant="workspace")
lambda_handler = app.lambda_handler
