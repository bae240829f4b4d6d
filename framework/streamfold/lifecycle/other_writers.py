"""Other applications of a state that write the same targets, as their manifests say."""

from collections.abc import Iterable

from streamfold.batch.manifest import Manifest
from streamfold.engines import StoredItem
from streamfold.ledger.state_keys import manifest_key
from streamfold.lifecycle.state_items import state_key
from streamfold.records.values import decode
from streamfold.routes.route import Route


class OtherWriters:
    """The targets of other applications, noted while the items of the state are read."""

    def __init__(self, application: str) -> None:
        self.application = application
        self.targets: dict[str, str] = {}  # an application by target

    def see(self, stored: StoredItem) -> None:
        """Notes the targets of an application, if a state item is its manifest."""
        partition, begins = state_key(stored).pk, manifest_key("").pk
        name = partition.removeprefix(begins)
        if not partition.startswith(begins) or name == self.application:
            return
        for entry in Manifest.of(decode({"M": stored})).handlers.values():
            self.targets.update(dict.fromkeys(entry.get("targets", ()), name))

    def of(self, routes: Iterable[Route]) -> str | None:
        """An application that writes a target of these handlers too; None if there is none."""
        places = (key.place for route in routes for key in route.writes)
        return next((self.targets[place] for place in places if place in self.targets), None)
