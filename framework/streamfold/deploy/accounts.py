"""What a deployment may take of other accounts, and what these have to grant.

AWS allows a call to a resource of another account only if both sides do: the caller's own policy, which is in the
template, and the policy of the resource, or the trust policy of a role (IAM User Guide,
reference_policies_evaluation-logic-cross-account). ``Grants`` makes the documents of the other side.
"""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from streamfold.deploy.deployed import ASSUME
from streamfold.deploy.functions import DESCRIBE, QUEUE, DeployedFunction
from streamfold.deploy.permissions import KINESIS_ACTIONS, VERSION, Permission, Place, policy
from streamfold.deploy.table_names import FAILURES, IN_FAILURES, TableNames, by_own_role, by_role, state_table
from streamfold.errors import SettingsError, manual
from streamfold.keys.table import STATE
from streamfold.routes.checks import check_accounts
from streamfold.settings.readers import account_of, account_of_role

SHARED_STREAM_ACTIONS = ("dynamodb:DescribeStream", "dynamodb:GetRecords", "dynamodb:GetShardIterator")
"""What the policy of a stream allows (DynamoDB Developer Guide, rbac-attach-resource-policy-streams). ``ListStreams``
is asked of the function's own account."""
SHARED_KINESIS_ACTIONS = tuple(f"kinesis:{each}" for each in KINESIS_ACTIONS if each != "SubscribeToShard")
"""What the policy of a stream of Kinesis allows. ``SubscribeToShard`` is of a registered consumer."""


def check_template(tables: TableNames) -> None:
    """Raises ``SettingsError`` for tables, buckets and queues of other accounts that a function cannot use."""
    elsewhere, deployment = tables.elsewhere, tables.deployment
    check_accounts(deployment.app.routes, elsewhere.role_of)
    for table in deployment.tables:
        role = elsewhere.role_of(table.name)
        if role is not None and table.name not in tables.existing:
            raise SettingsError(
                f"Table {table.name!r} is used by {role}: expected --table {table.name}=REAL, its name in account "
                f"{account_of_role(role)}. A template makes no table of another account."
            )
    if elsewhere.queue is not None and len([each for each in deployment.functions if each.sort == QUEUE]) != 1:
        raise SettingsError(
            f"--queue {elsewhere.queue!r}: expected an application with one group of handlers that open fan-outs: each "
            "group has a queue of its own."
        )
    for function in deployment.functions:
        own = by_own_role(deployment.permissions(function, **tables.with_permissions), elsewhere.role_of)
        for action, place in sorted(own):
            if place.kind == "table" and action != DESCRIBE and _is_foreign_table(tables, place.name):
                real = tables.existing[place.name]
                raise SettingsError(
                    f"{function.name} uses table {place.name!r} of account {account_of(real.stream)} ({action}), not "
                    f"only its stream: expected --assume {place.name}=arn:aws:iam::{account_of(real.stream)}:role/NAME "
                    f"({manual('accounts')})."
                )


def _is_foreign_table(tables: TableNames, logical: str) -> bool:
    existing = tables.existing.get(logical)
    return existing is not None and tables.elsewhere.is_foreign(existing.stream)


class SharedResource(NamedTuple):
    """A resource of another account, to which a policy is attached."""

    account: str
    kind: str  # streams, tables, buckets or queues
    name: str  # what the policy is attached to
    arn: str  # in a statement of it


class Grants:
    """The documents of other accounts. ``stack``: the stack of the functions, whose roles have its name."""

    def __init__(self, tables: TableNames, stack: str) -> None:
        self.tables = tables
        self.elsewhere = tables.elsewhere
        self.stack = stack
        if self.elsewhere.account is None:
            raise SettingsError("--grants needs the account of the functions: expected --account NUMBER.")

    def documents(self) -> dict[str, Any]:
        """By account: roles with trust and policy; policies of streams, tables, buckets and queues."""
        found: dict[str, dict[str, dict[str, Any]]] = {}
        roles: dict[str, list[tuple[DeployedFunction, set[Permission]]]] = {}
        for function in self.tables.deployment.functions:
            granted = self.tables.deployment.permissions(function, **self.tables.with_permissions)
            for role, permissions in by_role(granted, self.elsewhere.role_of).items():
                roles.setdefault(role, []).append((function, permissions))
            for shared, actions in self._shared(by_own_role(granted, self.elsewhere.role_of)).items():
                of_kind = found.setdefault(shared.account, {}).setdefault(shared.kind, {})
                document = of_kind.setdefault(shared.name, {"Version": VERSION, "Statement": []})
                named = {"Sid": f"{function.name}{len(document['Statement']) + 1}", **self._allowed([function])}
                document["Statement"].append({**named, "Action": sorted(actions), "Resource": shared.arn})
        for role, users in roles.items():
            allowed = {**self._allowed(each for each, _ in users), "Action": ASSUME}
            every = set[Permission]().union(*(permissions for _, permissions in users))
            found.setdefault(str(account_of_role(role)), {}).setdefault("roles", {})[role] = {
                "AssumeRolePolicyDocument": {"Version": VERSION, "Statement": [allowed]},
                "PolicyDocument": policy(every, self._arn_by_role),
            }
        return found

    def _allowed(self, functions: Iterable[DeployedFunction]) -> dict[str, Any]:
        """Who may: the roles of functions. CloudFormation ends their names with letters that nobody knows before."""
        account, partition = self.elsewhere.account, "aws"
        names = [f"arn:{partition}:iam::{account}:role/{self.stack}-{each.name}Role-*" for each in functions]
        return {
            "Effect": "Allow",
            "Principal": {"AWS": f"arn:{partition}:iam::{account}:root"},
            "Condition": {"ArnLike": {"aws:PrincipalArn": sorted(names)}},
        }

    def _arn_by_role(self, place: Place) -> str:
        """The ARN of a table, or of the state, in the account of its role. The region is that of the streams."""
        logical = STATE.name if place.kind == "state" else place.name
        regions = {str(each.stream).split(":")[3] for each in self.tables.existing.values() if each.stream}
        app = self.tables.deployment.app
        region = app.tables[logical].region if logical in app.tables else None
        account = account_of_role(self.elsewhere.role_of(logical))
        real = state_table(app.name) if logical == STATE.name else self._real(logical)
        return f"arn:aws:dynamodb:{region or (regions.pop() if len(regions) == 1 else '*')}:{account}:table/{real}"

    def _real(self, logical: str) -> str:
        existing = self.tables.existing.get(logical)
        return existing.name if existing else logical

    def _shared(self, own: Iterable[Permission]) -> dict[SharedResource, list[str]]:
        found: dict[SharedResource, list[str]] = {}
        for action, place in own:
            for shared in self._places(place):
                if shared.kind != "streams" or action in (*SHARED_STREAM_ACTIONS, *SHARED_KINESIS_ACTIONS):
                    found.setdefault(shared, []).append(action)
        return dict(sorted(found.items()))

    def _places(self, place: Place) -> Iterator[SharedResource]:
        if place.kind in ("stream", "table"):
            existing = self.tables.existing.get(place.name)
            if existing is not None and self.elsewhere.is_foreign(existing.stream):
                kind, arn = place.kind + "s", str(existing.stream)
                named = arn if kind == "streams" else arn.partition("/stream/")[0]
                yield SharedResource(str(account_of(arn)), kind, named, named)
        elif place.kind != "role" and (arn_found := self.elsewhere.arn_of(place)) is not None:
            bucket = self.elsewhere.buckets.get(FAILURES if place.kind in IN_FAILURES else place.kind)
            if bucket is not None:
                yield SharedResource(bucket.account, "buckets", bucket.name, arn_found)
            elif self.elsewhere.is_foreign(arn_found):
                yield SharedResource(str(account_of(arn_found)), "queues", arn_found, arn_found)


def counts_writes_elsewhere(tables: TableNames, logical: str) -> bool:
    """Whether the writes of a table are counted in another account, where the alarm on its mapping sees none."""
    return tables.elsewhere.role_of(logical) is not None or _is_foreign_table(tables, logical)
