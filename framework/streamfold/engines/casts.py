"""Expressions of writes that come often: made once for all writes of one shape, and filled with the values of each."""

from typing import Any

from streamfold.engines.clauses import Expression, clauses, counts_live, has_revision, still_expected
from streamfold.keys.table import CONTRIBUTORS, LIFE, OWNER, STAMP, VERSION
from streamfold.writes.guarded import AddRow, LedgerWrite

SHAPES_MAX = 2000
"""Shapes of writes whose expressions are kept: an application has a few for each handler."""
VALUES = "ExpressionAttributeValues"

WriteShape = tuple[Any, ...]


class Casts(dict[WriteShape, dict[str, Any]]):
    """The expressions of writes, by what these are made of."""

    def learn(self, shape: WriteShape, cast: dict[str, Any]) -> dict[str, Any]:
        """Keeps the expressions of a shape, without the values that they were made of."""
        cast.pop(VALUES, None)
        if len(self) >= SHAPES_MAX:
            self.clear()
        self[shape] = cast
        return cast


def ledger_cast(write: LedgerWrite) -> dict[str, Any]:
    """The expressions of a ledger write and the names in them: they are the same for all writes of one shape.

    A ledger item says most texts several times, such as the version of a change, so each is sent once.
    """
    use = Expression(once=True)
    sets: dict[str, Any] = {}
    removes: list[str] = []
    conditions: list[str] = []
    for part in write.parts:
        sets |= {part.handler + ".v": part.version, part.handler + ".s": part.contribution}
        if part.left is not None:
            sets[part.handler + ".u"] = part.left
        if write.fence:
            sets[part.handler + ".fence"] = True
        else:
            removes.append(part.handler + ".fence")
        if write.revision is None:
            conditions.append(still_expected(use, part))
    if write.expires:
        sets["ttl"] = 0
    else:
        removes.append("ttl")
    if write.live_expected is not None:
        conditions.append(counts_live(use, write.live_expected))
    if write.revision is not None:
        conditions.append(has_revision(use, write.revision))
    update = {"UpdateExpression": clauses(use, sets, removes, {"r": 1} | ({"live": write.live} if write.live else {}))}
    return update | use.condition(*conditions)


def add_cast(write: AddRow, partition: str) -> dict[str, Any]:
    """The same of an addition to a row of a table with this partition key."""
    use = Expression()
    amounts = {**write.amounts, CONTRIBUTORS: write.contributors} if write.contributors else write.amounts
    sets = {STAMP: write.stamp, **write.values} if write.stamp else write.values
    if write.born:
        sets = {LIFE: write.life, **sets}
    removes = write.removed if write.unversioned or OWNER in write.removed else (*write.removed, OWNER)
    update = {"UpdateExpression": clauses(use, sets, removes, amounts)}
    conditions = [f"attribute_not_exists({use.name(VERSION)})"] if write.unversioned else []
    if write.born:
        # A row that expired and was made again meanwhile has a life of its own: nothing is added to it unseen.
        conditions.append(f"attribute_not_exists({use.name(partition)})")
    elif write.life:
        conditions.append(f"{use.name(LIFE)} = {use.value(write.life)}")
    elif write.life is not None:
        conditions.append(f"attribute_not_exists({use.name(LIFE)})")
    if write.contributors_required is not None:
        conditions.append(f"{use.name(CONTRIBUTORS)} >= {use.value(write.contributors_required)}")
    return update | use.condition(*conditions)
