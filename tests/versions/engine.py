"""The store as processes have it: calls fail as a history's random numbers say."""

from functools import partial

from tests.versions.api import READS, THROTTLED, UNAVAILABLE

READ_FAULTS = ("unavailable", "dies")
WRITE_FAULTS = ("unavailable", "dies", "answer lost", "done and dies", "lands late", "dies and lands late")


class Died(BaseException):
    """A process died in a call."""


class Faulty:
    """Passes calls on to a store's engine, or lets one in ``1 / rate`` fail; what is late lands at a later call."""

    def __init__(self, store, random, rate, tell):
        self.store = store
        self.random = random
        self.rate = rate
        self.tell = tell
        self.late = []

    def __getattr__(self, name):
        found = getattr(self.store.engine, name)
        return partial(self._call, name) if callable(found) else found

    def land(self):
        """Lets everything land that is still on its way."""
        while self.late:
            name, arguments = self.late.pop(0)
            self.tell(f"    a {name} that was believed dead lands")
            try:
                self._carried_out(name, *arguments)
            except UNAVAILABLE:
                continue

    def _call(self, name, *arguments, **options):
        if self.late and self.random.random() < 0.1:
            self.land()
        if not self.rate or self.random.random() >= self.rate:
            return self._carried_out(name, *arguments, **options)
        fault = self.random.choice(READ_FAULTS if name.startswith(READS) else (*WRITE_FAULTS, "throttled"))
        self.tell(f"    {name}: {fault}")
        if fault == "throttled" and name == "transact":
            return THROTTLED._replace(reasons=THROTTLED.reasons * len(arguments[0]))
        if fault in ("answer lost", "done and dies"):
            self._carried_out(name, *arguments, **options)
        elif fault.endswith("lands late"):
            self.late.append((name, arguments))
        raise Died if "dies" in fault else UNAVAILABLE("a fault")

    def _carried_out(self, name, *arguments, **options):
        call = getattr(self.store.engine, name)
        if name != "transact":
            return call(*arguments, **options)
        before = {place: self.store.read(place) for place in self.store.sources_of(arguments[0])}
        answer = call(*arguments, **options)
        for place, image in before.items():
            self.store.tell(place, image, self.store.read(place))
        return answer
