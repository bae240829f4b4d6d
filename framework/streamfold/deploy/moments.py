"""What the doctor says of handlers that ask for the time: who looks for moments that came, and which were not seen."""

import json
from collections.abc import Iterator, Sequence

from streamfold.app import App
from streamfold.deploy import rules
from streamfold.deploy.deployed import DYNAMODB, SQS, Account, LiveFunction, NotThere
from streamfold.deploy.diagnosis import BY_SCHEDULE, Diagnosis, DoctorLine, bad, good, judged
from streamfold.derivations.derivation import fans_out
from streamfold.errors import SettingsError, manual
from streamfold.lambda_entry.queue import WAKE
from streamfold.ledger.wakes import VISITED_WITHIN_SECONDS, partitions, until
from streamfold.routes.moments import SECOND_MICROSECONDS
from streamfold.routes.route import Route

NO_SCHEDULE = "their rows never change by time"


def schedule(function: LiveFunction) -> Diagnosis:
    """Whether a rule of EventBridge calls the queue's function with the event that looks for moments.

    Raises as ``Account.ask``.
    """
    found = [*_rules(function.account, str(function.described.get("FunctionArn", function.name)))]
    enabled = [text for text, is_enabled in found if is_enabled]
    if not found:
        return bad(
            f"no rule of EventBridge calls it with {json.dumps(WAKE)}: {NO_SCHEDULE}",
            f"give it the schedule {rules.EACH_MINUTE} with that input, as streamfold template prints it",
        )
    if not enabled:
        return bad(f"the rule that looks for moments is disabled: {NO_SCHEDULE}", "enable the rule")
    return good(f"{enabled[0]} with {json.dumps(WAKE)}")


def _rules(account: Account, arn: str) -> Iterator[tuple[str, bool]]:
    """The schedules of rules whose target is a function with the event of wakes, and whether each is enabled."""
    for name in account.ask("events", "list_rule_names_by_target", TargetArn=arn).get("RuleNames", ()):
        targets = account.ask("events", "list_targets_by_rule", Rule=name).get("Targets", ())
        if any(each["Arn"] == arn and _event(each.get("Input", "")) == WAKE for each in targets):
            rule = account.ask("events", "describe_rule", Name=name)
            yield str(rule.get("ScheduleExpression", "")), rule.get("State") != "DISABLED"


def _event(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        return None


def queue_lines(app: App, functions: Sequence[LiveFunction]) -> Iterator[DoctorLine]:
    if any(map(fans_out, app.routes)):
        yield from judged(app.name, {"queue": lambda: behind_queue(app, functions)})


def behind_queue(app: App, functions: Sequence[LiveFunction]) -> Diagnosis:
    """Whether a function works on the queue of each group that needs one. Raises as ``Account.ask``.

    A function that nothing reaches, or whose settings are wrong, has a line of its own.
    """
    behind = [each for each in functions if _is_behind_queue(each)]
    routes = [route for route in app.routes if fans_out(route) and _serves(functions, route)]
    unserved = [route for route in routes if not _serves(behind, route)]
    if not unserved:
        return good(f"a function works for each of {len(routes)} handlers")
    timed = ", ".join(route.name for route in unserved if route.asks_time)
    # The handler of a timer has no subscription, and no fan-out: the route of its moments is named.
    others = ", ".join(each.name for each in unserved if not each.asks_time and each.kind.subscriptions(each))
    found = [f"nobody looks for moments of {timed}: {NO_SCHEDULE}"] if timed else []
    found += [f"fan-outs of {others} stay open"] if others else []
    return bad(
        f"no function here works on a queue of theirs; {'; '.join(found)}",
        "name it too, if it is deployed; otherwise deploy jobs_handler behind STREAMFOLD_JOBS"
        + (f" with the schedule {rules.EACH_MINUTE}" if timed else "")
        + ", as streamfold template prints it",
    )


def _is_behind_queue(function: LiveFunction) -> bool:
    if not function.mappings:
        return not function.described.get("Handler", "").endswith(BY_SCHEDULE)
    return any(mapping.service == SQS for mapping in function.mappings)


def _serves(functions: Sequence[LiveFunction], route: Route, *, runs: bool = False) -> bool:
    """Whether one of these functions is for a handler's group. ``runs``: and has not switched the handler off."""
    for each in functions:
        try:
            settings = each.settings
        except (NotThere, SettingsError):  # a line of its own says so
            if runs:
                continue
            return True
        if settings.runs(route.name, route.group) if runs else settings.serves(route.group):
            return True
    return False


def asking(app: App) -> Sequence[Route]:
    return [route for route in app.routes if route.asks_time]


def late(
    app: App, routes: Sequence[Route], account: Account, table: str, now: float, functions: Sequence[LiveFunction]
) -> Diagnosis:
    """Whether items wait whose moment came long ago, and which handlers have nobody who looks. One query a stripe.

    Raises as ``Account.ask``.
    """
    unserved = [route.name for route in routes if not _serves(functions, route, runs=True)]
    moment = round((now - VISITED_WITHIN_SECONDS) * SECOND_MICROSECONDS)
    waiting = {
        route.name: stripes
        for route in routes
        if (stripes := sum(_has_wake(account, table, each, moment) for each in partitions(app.name, route.name)))
    }
    if waiting:
        names = ", ".join(waiting)
        nobody = f"; no function here runs {', '.join(unserved)}" if unserved else ""
        return bad(
            f"items of {names} were to be derived again more than {VISITED_WITHIN_SECONDS // 60} minutes ago{nobody}",
            f"streamfold jobs shows since when; {manual('moments')} says who looks",
        )
    return good(f"{len(routes)} handlers ask for the time, and no item waits for long")


def _has_wake(account: Account, table: str, partition: str, moment: int) -> bool:
    answer = account.ask(
        DYNAMODB,
        "query",
        TableName=table,
        KeyConditionExpression="pk = :pk AND sk < :sk",
        ExpressionAttributeValues={":pk": {"S": partition}, ":sk": {"S": until(moment)}},
        ProjectionExpression="sk",
        Limit=1,
    )
    return bool(answer["Items"])
