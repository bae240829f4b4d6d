"""Names that a user gave and the application does not know."""

from collections.abc import Iterable

from streamfold.errors import SettingsError


def unknown_handler(said: str, name: str, known: Iterable[str]) -> SettingsError:
    """The error for a handler's name that a setting or an option gives, with the names that are near it."""
    from difflib import get_close_matches  # only needed where a name is wrong

    names = list(known)
    near = get_close_matches(name, names)
    expected = " or ".join(near) if near else f"one of {', '.join(names)}"
    return SettingsError(f"{said} names {name!r}, which is no handler of the application: expected {expected}.")
