"""The places where archives can lie, as they are declared and set."""

from typing import TYPE_CHECKING

from streamfold.errors import DeclarationError, SettingsError
from streamfold.routes.route import Route

if TYPE_CHECKING:
    from streamfold.settings import Settings

FOLDER = "file:"
BUCKET = "s3://"
PLACES = f"expected {BUCKET}BUCKET/PREFIX, or locally {FOLDER}FOLDER"
"""Where archives can lie."""


def is_place(text: object) -> bool:
    """Whether a text names a place where archives can lie."""
    if not isinstance(text, str):
        return False
    if text.startswith(BUCKET):
        return bool(text.removeprefix(BUCKET).partition("/")[0])
    return text.startswith(FOLDER) and text != FOLDER


def checked_place(to: str, at: str) -> str:
    """The place of an archive. Raises ``DeclarationError`` for a text that names none."""
    if not is_place(to):
        raise DeclarationError(f"archive at {at} has to={to!r}: {PLACES}.")
    return to


def check_place(route: Route, settings: "Settings") -> None:
    """Raises ``SettingsError`` for what is no place, and for a folder: it goes when the function's environment does."""
    place = settings.archive or str(route.options)
    if not is_place(place):
        raise SettingsError(f"STREAMFOLD_ARCHIVE={place!r} is no place that is known: {PLACES}.")
    if place.startswith(FOLDER):
        raise SettingsError(
            f"Archive {route.name!r} goes to {place!r}, a folder, which goes when the function's environment does: "
            "expected s3://BUCKET/PREFIX, in its declaration or as STREAMFOLD_ARCHIVE."
        )
