"""The items that archives keep."""

from collections.abc import Iterator
from datetime import date
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from streamfold.derivations.archive.archives import ArchivedItem


def archived(
    place: str,
    handler: str,
    *,
    first: date | None = None,
    last: date | None = None,
    client: Any = None,
) -> Iterator["ArchivedItem"]:
    """The removed items that ``router.archive`` has kept, each once, day by day.

    ``place`` is what ``to=`` or the setting says, ``handler`` the name of the declaration
    (``archive_session_metadata``, if it gives none), ``first`` and ``last`` the days (UTC, both included), ``client``
    boto3's client for S3. One day's versions are remembered at a time.
    """
    from streamfold.derivations.archive.archives import read_archive
    from streamfold.derivations.archive.places import open_place
    from streamfold.parking import make_client

    return read_archive(open_place(place, (lambda _: client) if client else make_client), handler, first, last)
