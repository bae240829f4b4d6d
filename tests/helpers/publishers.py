"""Publishers over a store in process, and a destination that a test answers for."""

from streamfold import Key
from streamfold.batch.process import process_event
from streamfold.derivations.publish.local import OPENED, LocalMessages
from streamfold.derivations.publish.targets import Limits
from streamfold.engines.memory import MemoryEngine
from streamfold.runtime import Runtime
from streamfold.settings import Settings

ORDER = Key("ORDER#{order_id}", "METADATA")


class Scripted(LocalMessages):
    """Takes messages, unless ``refuses`` returns an error for one or raises one for a request."""

    def __init__(self, refuses=lambda message: None):
        super().__init__()
        self.refuses = refuses
        self.requests = []

    def send_entries(self, messages):
        self.requests.append([each.id for each in messages])
        errors = [self.refuses(each) for each in messages]
        super().send_entries([each for each, error in zip(messages, errors, strict=True) if error is None])
        return errors

    @property
    def ids(self):
        return [each.id for each in self.sent]


class Shop:
    """An application, its store, and where its messages go."""

    def __init__(self, app, *, refuses=lambda message: None):
        self.app = app
        self.engine = MemoryEngine(app.tables.values())
        self.place = Scripted(refuses)
        self.given = {}

    def deliver(self, *records, **given):
        own = {"outside": True, "opened": {OPENED: self.place}, "pause": lambda _: None, **self.given, **given}
        return process_event(Runtime(self.app, self.engine, own.pop("settings", Settings()), **own), [*records])


class Answering:
    """A target whose ``send`` is given by a test."""

    def __init__(self, send, limits=Limits(10, 1000, 1000)):  # noqa: B008 - a value
        self.send = send
        self.limits = limits

    def bytes_of(self, message):
        return len(message.text)
