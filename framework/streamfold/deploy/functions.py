"""Which functions an application needs, and what follows for each from its routes.

Each group of handlers has a function that reads the streams of its tables. A group whose handlers open fan-outs has a
queue, and a function behind it. One more function compares a sample each day.
"""

import re
from collections.abc import Collection, Mapping
from functools import cached_property
from types import ModuleType
from typing import Any, Literal, NamedTuple

from streamfold.app import App
from streamfold.batch.ownership import marked_tables
from streamfold.deploy import alarms
from streamfold.deploy.alarms import Alarm
from streamfold.deploy.permissions import NO_SECRETS, Permission, Place, Role, permissions
from streamfold.derivations.derivation import derivation, fans_out
from streamfold.errors import SettingsError
from streamfold.keys.key import Key
from streamfold.keys.table import MAIN, STATE, Table
from streamfold.routes.checks import lacking
from streamfold.routes.route import GROUP, Route
from streamfold.settings import TABLE_PREFIX, environment_name

Sort = Literal["stream", "queue", "verifier"]
STREAM: Sort = "stream"
QUEUE: Sort = "queue"
VERIFIER: Sort = "verifier"
ENTRIES: Mapping[Sort, str] = {STREAM: "lambda_handler", QUEUE: "jobs_handler", VERIFIER: "verify_handler"}
"""The way in of each sort, a method of the application."""
VIEWS = ("KEYS_ONLY", "NEW_IMAGE", "OLD_IMAGE", "NEW_AND_OLD_IMAGES")
BOTH_IMAGES = "NEW_AND_OLD_IMAGES"
RUNTIME = "python3.13"
"""The Python that the functions are built, tested and measured with (tests/bench, tests/on_local)."""
STATE_TABLE = "STREAMFOLD_STATE_TABLE"
STATE_RESOURCE = "StateTable"
"""The name of the state table in a template."""
DESCRIBE = "dynamodb:DescribeTable"
"""Asked for the identity of a table whose records come."""


def kinds_of_places(route: Route) -> set[str]:
    """What the places are that a route writes to or reads when it processes changes."""
    return {call.place.kind for call in derivation(route).process_calls(route)}


class DeployedFunction(NamedTuple):
    """One function of a deployment."""

    sort: Sort
    group: str | None  # of handlers; None: all
    routes: tuple[Route, ...]
    handler: str  # MODULE.NAME

    @property
    def name(self) -> str:
        """Its name in a template."""
        if self.sort == VERIFIER:
            return "Verifier"
        if self.sort == STREAM and self.searches and self.group == "search":
            return "Searcher"
        group = "" if self.group in (None, GROUP) else logical_id(str(self.group))
        return group + ("Projector" if self.sort == STREAM else "Spreader")

    @property
    def runner(self) -> Role:
        """The function as permissions know it."""
        return Role(self.sort, self.group)

    @property
    def queue(self) -> str:
        return self._replace(sort=QUEUE).name.removesuffix("Spreader") + "Doorbell"

    @property
    def searches(self) -> bool:
        """Whether it sends documents to a search server."""
        return any(route.kind.indexes(route) for route in self.routes)

    @property
    def only_searches(self) -> bool:
        """Whether all that it does is to send documents: an application can do without it."""
        return bool(self.routes) and all(route.kind.indexes(route) for route in self.routes)

    @property
    def fans_out(self) -> bool:
        """Whether its handlers open fan-outs, which need a queue."""
        return any(map(fans_out, self.routes))

    @property
    def archives(self) -> list[Route]:
        """The handlers that keep removed items outside of tables."""
        return [each for each in self.routes if "archive" in kinds_of_places(each)]

    @property
    def alarms(self) -> tuple[Alarm, ...]:
        """Its alarms, without those of tables and queues."""
        if self.sort == STREAM:
            adds = any(route.kind.watches(route) for route in self.routes)
            return (*alarms.OF_STREAM, alarms.ROWS_GONE) if adds else alarms.OF_STREAM
        if self.sort == QUEUE:
            return (*alarms.OF_QUEUE_FUNCTION, alarms.WAKE_AGE) if self.is_woken else alarms.OF_QUEUE_FUNCTION
        return alarms.OF_VERIFIER

    @property
    def is_woken(self) -> bool:
        """Whether a schedule calls it each minute: a handler asks for the time, and items are visited at moments."""
        return any(route.asks_time for route in self.routes)

    @property
    def subscribed(self) -> dict[str, list[tuple[Key, Route]]]:
        """The keys whose changes reach its handlers, by logical table."""
        found: dict[str, list[tuple[Key, Route]]] = {}
        for route in self.routes if self.sort == STREAM else ():
            for each in route.kind.subscriptions(route):
                found.setdefault(each.key.table.name, []).append((each.key, route))
        return found


class Deployment:
    """An application as it is deployed. ``module``: the one that has the names which Lambda calls, such as
    ``lambda_handler``; None where nothing is rendered.
    """

    def __init__(self, app: App, module: ModuleType | str) -> None:
        self.app = app
        self.module = module

    @cached_property
    def groups(self) -> tuple[str, ...]:
        """The groups of handlers, in their order."""
        return tuple(dict.fromkeys(route.group for route in self.app.routes)) or (GROUP,)

    def routes(self, group: str | None) -> tuple[Route, ...]:
        return tuple(route for route in self.app.routes if group in (None, route.group))

    @cached_property
    def functions(self) -> tuple[DeployedFunction, ...]:
        """The functions. Raises ``SettingsError`` where the module lacks the name that Lambda has to call."""
        made = [DeployedFunction(STREAM, group, self.routes(group), self.entry(STREAM)) for group in self.groups]
        made += [DeployedFunction(QUEUE, each.group, each.routes, self.entry(QUEUE)) for each in made if each.fans_out]
        return (*made, DeployedFunction(VERIFIER, None, self.app.routes, self.entry(VERIFIER)))

    def entry(self, sort: Sort) -> str:
        """The name in the module that Lambda calls."""
        module = self.module
        if isinstance(module, str):
            return f"{module}.{ENTRIES[sort]}"
        wanted = getattr(self.app, ENTRIES[sort])
        for name in dict.fromkeys([ENTRIES[sort], *vars(module)]):
            if getattr(module, name, None) == wanted:
                return f"{module.__name__}.{name}"
        raise SettingsError(
            f"Module {module.__name__} has no name for the way in that a function calls: expected "
            f"{ENTRIES[sort]} = app.{ENTRIES[sort]} in it."
        )

    def permissions(
        self,
        function: DeployedFunction,
        *,
        kinesis: Collection[str] = (),
        encrypted: Collection[str] = (),
        secrets: Mapping[str, str] = NO_SECRETS,
        mapped: Collection[str | None] = (),
    ) -> set[Permission]:
        """What a function may do.

        It may read the streams of the tables that its handlers subscribe to, and of those in ``mapped``. A table that
        it only writes to has a stream, too: the function does not read that stream, and asks for the id of the table
        only if handlers add to its rows. kinesis, encrypted and secrets: as in ``permissions``.
        """
        read = {*function.subscribed, *mapped}
        described = {*read, *marked_tables(function.routes), Place("state").name}
        found = permissions(self.app, function.runner, kinesis=kinesis, encrypted=encrypted, secrets=secrets)
        return {
            each
            for each in found
            if not (each.place.kind == "stream" and each.place.name not in read)
            and not (each.action == DESCRIBE and each.place.name not in described)
        }

    @cached_property
    def sources(self) -> tuple[Table, ...]:
        read = dict.fromkeys(name for each in self.functions for name in each.subscribed)
        return tuple(self.app.tables[name] for name in read)

    @cached_property
    def tables(self) -> tuple[Table, ...]:
        """The application's own tables; those of another region are somebody else's."""
        return tuple(table for table in self.app.tables.values() if table.name != STATE.name and table.region is None)

    def resource_of(self, table: str) -> str:
        """The name of a table's resource in a template."""
        if table == MAIN.name or [table] == [each.name for each in self.tables]:
            return "Table"
        return logical_id(table) + "Table"

    def check_names(self) -> None:
        """Raises ``SettingsError`` if two things of the application have one name in a template.

        A template is an object of names: the later of two would replace the earlier without a word.
        """
        named = [(STATE_RESOURCE, "the state table")]
        named += [(self.resource_of(name), f"table {name!r}") for name in self.app.tables if name != STATE.name]
        for each in self.functions:
            of = "the comparison" if each.sort == VERIFIER else f"group {each.group!r}"
            named.append((each.name, f"the function {each.handler} of {of}"))
        known: dict[str, str] = {}
        for name, what in named:
            if name in known:
                raise SettingsError(
                    f"A template would have {known[name]} and {what} under one name, {name}, and would lose one of "
                    "them. Rename one: a template keeps the letters and digits of a name, each word with a capital."
                )
            known[name] = what

    @cached_property
    def environment_names(self) -> dict[str, str]:
        """The variable of each table, by logical name."""
        return {name: TABLE_PREFIX + environment_name(name) for name in self.app.tables if name != STATE.name}

    def view(self, table: Table) -> str:
        """The view type that a template gives the stream of a table."""
        return table.view or BOTH_IMAGES

    def lacking(self, table: str, view: str) -> list[str]:
        """Why handlers cannot work on a stream of this view type: a sentence each."""
        readers = dict.fromkeys(route for each in self.functions for _, route in each.subscribed.get(table, ()))
        found = ((route, lacking(route, view)) for route in readers)
        return [f"{route.kind} {route.name!r} {why}" for route, why in found if why]


def logical_id(name: str) -> str:
    """A name in letters and digits, as resources of a template have it."""
    return "".join(word[0].upper() + word[1:] for word in re.findall(r"[A-Za-z0-9]+", name))


def group_of_function(app: App, name: str) -> str | None:
    """The group of a deployed function, by the name that CloudFormation gives it: ``STACK-Projector-1A2B3C4D``.

    None for a name of another form: nothing in it says what the function serves.
    """
    found = [
        each.group for each in Deployment(app, "").functions if each.sort == STREAM and _is_called(each.name, name)
    ]
    return found[0] if len(found) == 1 else None


def _is_called(logical: str, name: str) -> bool:
    return name == logical or re.fullmatch(rf"(?:.+-)?{logical}-[A-Za-z0-9]{{8,}}", name) is not None


def dimensions(
    alarm: Alarm, *, service: Any, function: Any = None, mapping: Any = None, table: Any = None, resource: Any = None
) -> Any:
    """The dimensions of an alarm's metrics, of these names."""
    if alarm.of == alarms.OWN:
        return {"service": service, "function": function}
    if alarm.math:
        return {alarm.of: mapping, alarms.TABLE: table}
    return {alarm.of: {alarms.FUNCTION: function, alarms.MAPPING: mapping}.get(alarm.of, resource)}


# Tables that are there already.

STREAM_ARN = re.compile(r"arn:[\w-]+:dynamodb:[\w-]+:\d{12}:table/([\w.-]+)/stream/\S+")
KINESIS_ARN = re.compile(r"arn:[\w-]+:kinesis:[\w-]+:\d{12}:stream/[\w.-]+")
KEY_ARN = re.compile(r"arn:[\w-]+:kms:[\w-]+:\d{12}:key/\S+")


class ExistingTable(NamedTuple):
    """A table that is there already, with the ARNs of its stream and of its key."""

    name: str  # real
    stream: str | None = None
    key: str | None = None

    @property
    def on_kinesis(self) -> bool:
        return self.stream is not None and KINESIS_ARN.fullmatch(self.stream) is not None


def existing_table(logical: str, name: str, stream: str | None, key: str | None, *, is_source: bool) -> ExistingTable:
    """An existing table as options name it. Raises ``SettingsError`` for ARNs that do not fit."""
    if is_source and stream is None:
        raise SettingsError(
            f"--table {logical}={name}: its stream is not given. Expected --stream {logical}=ARN; aws dynamodb "
            f"describe-table --table-name {name} --query Table.LatestStreamArn prints it."
        )
    found = STREAM_ARN.fullmatch(stream) if stream else None
    if stream and found is None and not KINESIS_ARN.fullmatch(stream):
        raise SettingsError(
            f"--stream {stream!r} is no stream: expected arn:aws:dynamodb:REGION:ACCOUNT:table/{name}/stream/LABEL, or "
            "the ARN of a stream of Kinesis."
        )
    if found is not None and found[1] != name:
        raise SettingsError(f"--stream {stream!r} is a stream of table {found[1]!r}: expected one of {name!r}.")
    if key and not KEY_ARN.fullmatch(key):
        raise SettingsError(f"--key {key!r} is no key: expected arn:aws:kms:REGION:ACCOUNT:key/ID.")
    return ExistingTable(name, stream, key)
