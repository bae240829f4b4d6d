"""How far replays into a state came that have not ended: kept with what they wrote, in the same transactions."""

from collections.abc import Iterable

from streamfold.engines.state_file import StateFile

PLACE = 0
"""The number of the text that says how far a replay came; those behind it are records that come again."""


class ReplayProgress:
    """The texts that are kept for replays, by their names."""

    def __init__(self, file: StateFile) -> None:
        self._file = file

    def place(self, replay: str) -> str | None:
        """How far a replay came; None for one that has ended or never began."""
        found = self._file.one("SELECT text FROM progress WHERE replay = ? AND number = ?", (replay, PLACE))
        return str(found[0]) if found else None

    def put_place(self, replay: str, text: str) -> None:
        self._file.execute("INSERT OR REPLACE INTO progress VALUES (?, ?, ?)", (replay, PLACE, text))

    def records(self, replay: str) -> list[str]:
        """The records that come again when the replay goes on."""
        query = "SELECT text FROM progress WHERE replay = ? AND number > ? ORDER BY number"
        return [text for (text,) in self._file.rows(query, (replay, PLACE))]

    def add_records(self, replay: str, texts: Iterable[str]) -> None:
        (last,) = self._file.one("SELECT coalesce(max(number), ?) FROM progress WHERE replay = ?", (PLACE, replay))
        rows = [(replay, number, text) for number, text in enumerate(texts, last + 1)]
        self._file.put_all("INSERT INTO progress VALUES (?, ?, ?)", rows)

    def drop_first(self, replay: str, count: int) -> None:
        """Forgets the first records that were kept."""
        some = "SELECT number FROM progress WHERE replay = ? AND number > ? ORDER BY number LIMIT ?"
        query = f"DELETE FROM progress WHERE replay = ? AND number IN ({some})"  # noqa: S608 - constants
        self._file.execute(query, (replay, replay, PLACE, count))

    def end(self, replay: str) -> None:
        """Forgets a replay: the next of its name begins anew."""
        self._file.execute("DELETE FROM progress WHERE replay = ?", (replay,))
