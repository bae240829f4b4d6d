"""What a process knows about a state. The run keeps it, so that declarations remember nothing."""

from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

from streamfold.engines import Engine
from streamfold.ledger.forms import Forms, FormsByHandler
from streamfold.records.envelope import Seen
from streamfold.routes.application import Application
from streamfold.run import Run


@dataclass(slots=True)
class StoredForms:
    """The state item of a target's forms."""

    forms: FormsByHandler = field(default_factory=dict)  # by handler and attribute
    revision: int = 0  # of the item as read; the guard of the next write


@dataclass(slots=True)
class Knowledge:
    """What a process knows about one application's state."""

    forms: Forms = field(default_factory=Forms)  # of all attributes: stored ones, and those that this process saw
    targets: dict[str, StoredForms] = field(default_factory=dict)  # stored forms by target
    noted: int = 0  # number of known attributes when the forms were last stored
    sources: dict[str, Seen] = field(default_factory=dict)  # source tables that records have come from
    revision: int | None = None  # of the manifest; None: not read yet


def knowledge(run: Run, application: Application, engine: Engine) -> Knowledge:
    """What the process knows of an application's state on an engine."""
    by_application: WeakKeyDictionary[Application, Knowledge] = run.learned.setdefault(engine, WeakKeyDictionary())
    return by_application.setdefault(application, Knowledge())
