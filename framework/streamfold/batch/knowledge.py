"""What a process knows about a state. The run keeps it, so that declarations remember nothing."""

from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from streamfold.engines import Engine
from streamfold.ledger.forms import Forms, FormsByHandler
from streamfold.ledger.lives import KnownLives
from streamfold.routes.application import Application
from streamfold.run import Run

if TYPE_CHECKING:
    from streamfold.records.envelope import Seen


class StoredForms:
    """The state item of a target's forms."""

    def __init__(self, forms: FormsByHandler | None = None, revision: int = 0) -> None:
        self.forms = {} if forms is None else forms  # by handler and attribute
        self.revision = revision  # of the item as read; the guard of the next write


class Knowledge:
    """What a process knows about one application's state."""

    def __init__(self) -> None:
        self.forms = Forms()  # of all attributes: stored ones, and those that this process saw
        self.targets: dict[str, StoredForms] = {}  # stored forms by target
        self.lives = KnownLives()  # of rows that expire
        self.noted = 0  # number of known attributes when the forms were last stored
        self.expiring: dict[str, set[str]] = {}  # of these, targets that the manifest names, by handler
        self.sources: dict[str, Seen] = {}  # source tables that records have come from
        self.revision: int | None = None  # of the manifest; None: not read yet

    def learn_expiring(self) -> None:
        """Takes over which rows expire by what handlers of this process yielded."""
        for places in self.forms.expiring.values():
            self.lives.targets |= places


def knowledge(run: Run, application: Application, engine: Engine) -> Knowledge:
    """What the process knows of an application's state on an engine."""
    by_application: WeakKeyDictionary[Application, Knowledge] = run.learned.setdefault(engine, WeakKeyDictionary())
    return by_application.setdefault(application, Knowledge())
