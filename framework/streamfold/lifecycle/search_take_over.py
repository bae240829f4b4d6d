"""A search with ``replaces=`` takes the alias of the other one over.

From the mark on, the replaced search writes to its index by name. So when the alias moves, none of its documents comes
into the other's index, whoever still runs it; and it may move back.
"""

from streamfold.derivations.search.aliases import Aliases, only_behind
from streamfold.derivations.search.declared import SearchIndex
from streamfold.derivations.search.marks import TAKEN, IndexMark, read_mark, write_mark
from streamfold.derivations.search.names import NEXT
from streamfold.derivations.search.options import options_of
from streamfold.engines import Engine
from streamfold.errors import SettingsError
from streamfold.lifecycle.search_rebuild import told_phase
from streamfold.routes.application import Application
from streamfold.run import Run


class TakeOver:
    """The alias of one search becomes another's. Each step may be done again."""

    def __init__(self, app: Application, engine: Engine, run: Run, index: SearchIndex, aliases: Aliases) -> None:
        replaced = options_of(index.route).replaces
        if replaced is None:
            raise SettingsError(
                f"Search {index.route.name!r} replaces none: --take-over is for one that is declared with replaces=."
            )
        self.app = app
        self.engine = engine
        self.run = run
        self.index = index
        self.aliases = aliases
        self.replaced = replaced
        self.alias = index.alias.removesuffix(NEXT)

    def begin(self) -> IndexMark:
        """Lets the replaced search write to its index by name."""
        for alias in (self.index.alias, self.alias):
            self.aliases.sink.check(alias)
        mark = self._read()
        if mark.phase == TAKEN:
            return mark
        own = read_mark(self.app.name, self.engine, self.index.alias)
        for alias, found in ((self.alias, mark), (self.index.alias, own)):
            if found.phase or found.old:
                raise SettingsError(told_phase(alias, found))
        old, new = only_behind(self.aliases, self.alias), only_behind(self.aliases, self.index.alias)
        self.aliases.name_own(old)
        return self._write(mark._replace(live=new, old=old, handler=self.replaced, phase=TAKEN))

    def move(self) -> IndexMark:
        """Moves the alias, when no batch is alive that has read an older mark."""
        mark = self._read()
        self.aliases.refresh(mark.live)
        self.aliases.point(self.alias, mark.live)
        return mark

    def _read(self) -> IndexMark:
        return read_mark(self.app.name, self.engine, self.alias)

    def _write(self, mark: IndexMark) -> IndexMark:
        now = mark._replace(since=int(self.run.clock()))
        return write_mark(self.app.name, self.engine, self.alias, now)
