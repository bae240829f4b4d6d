"""Items of the application's own at the keys of rows, as records of a recording show them."""

from typing import TYPE_CHECKING, NamedTuple

from streamfold.errors import redacted

if TYPE_CHECKING:
    from streamfold.keys.key import Key
    from streamfold.records.change import Change
    from streamfold.routes.application import Application


class ItemsAtRows(NamedTuple):
    """The records of one target's keys whose items have no mark of a row."""

    target: "Key"
    handlers: tuple[str, ...]  # that write the target
    records: int

    @property
    def text(self) -> str:
        """What is wrong, and what to do."""
        some = "1 record is of an item" if self.records == 1 else f"{self.records:,} records are of items"
        return (
            f"{some} at keys of {redacted(self.target.template)}, the target of {', '.join(self.handlers)}, and no "
            "handler put them: they have no mark of a row. In DynamoDB the handler is refused there, and its records "
            f"fail. Give it a target whose keys nobody else writes ({self.target.declared_at})."
        )


class RecordedItemsAtRows:
    """Counts such records, one after another."""

    def __init__(self, application: "Application") -> None:
        self._application = application
        self._records: dict[Key, int] = {}

    def see(self, change: "Change") -> None:
        """Counts a change of an item whose key is one of a target, if the item is the application's own."""
        if self._application.is_of_writer(change):
            table, partition, sort = change.item
            target = next(
                key
                for route in self._application.routes
                for key in route.into
                if key.table.name == table and key.match_values(partition, sort) is not None
            )
            self._records[target] = self._records.get(target, 0) + 1

    def found(self) -> tuple[ItemsAtRows, ...]:
        return tuple(
            ItemsAtRows(key, tuple(route.name for route in self._application.routes if key in route.into), count)
            for key, count in self._records.items()
        )
