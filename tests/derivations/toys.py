"""Two kinds that are not in the framework, each declared through the seam alone."""

from streamfold import Count, Router, Row
from streamfold.commit.outcome import Outcome
from streamfold.commit.transactions import send
from streamfold.derivations.derivation import Contributing, Derivation, Planned
from streamfold.derivations.expected import Expected, fields_of, shares_of
from streamfold.derivations.view.rows import RowBuilder, fold, row_contribution
from streamfold.derivations.yielded import split, target_of
from streamfold.errors import EngineError, EngineUnavailable, HandlerError
from streamfold.ledger.state_keys import event_key
from streamfold.records.change import image_of
from streamfold.routes.route import Subscription
from streamfold.writes.guarded import GuardedPut

TRIES_MAX = 8


class Tally(Contributing):
    """Counts items by what the handler says of them: ``Row`` without attributes."""

    name = "tally"
    yields = (Row,)
    shares_rows = True

    def contribution(self, route, image, fields, schema):
        def row(builder, effect):
            key, _ = split(target_of(route, effect), effect, fields)
            return key, row_contribution(builder, target_of(route, effect), {route.options: Count()}, None)

        return fold(RowBuilder(route, schema, fields), image, fields, row)

    def expected(self, route, history):
        shares = shares_of(route, history)
        return Expected(shares=[share._replace(values={route.options: Count()}) for share in shares])


class Join(Derivation):
    """Joins a source item with its partner, the item of ``options`` in the same partition, into one row.

    A counter is raised before both items are read, and is the row's version: a read that is older has a lower one.
    """

    name = "join"
    reads_items = True
    reconciles = True

    def items_given(self, options):
        return 2

    def guard(self, route):
        return "bump before read"

    def subscriptions(self, route):
        return (*super().subscriptions(route), Subscription(route.options, "partner"))

    def plan(self, works, planning):
        return Planned(deferred=[work._replace(changes=tuple(work.changes)) for work in works])

    def finish(self, deferred, finishing):
        outcome = Outcome()
        for work in deferred:
            try:
                finishing.runtime.begin()
                self._join(work, finishing, outcome)
            except (EngineError, HandlerError) as error:
                outcome.failed += finishing.failures(work.changes, work.route, error)
        return outcome

    def reconcile(self, work, finishing):
        outcome = Outcome()
        self._join(work, finishing, outcome)
        return outcome

    def _join(self, work, finishing, outcome):
        route, engine, (target,) = work.route, finishing.runtime.engine, work.route.into
        keys = [(key.table.name, *key.compose(work.fields)) for key in (route.sources[0], route.options)]
        number = self._raised(engine, event_key("join", finishing.runtime.application.name, route.name, keys[0], ""))
        values = self._values(route, [image_of(engine.read_source(key) or {}) for key in keys])
        row = GuardedPut((target.table.name, *target.compose(work.fields)), values, f"{number:020}")
        send(finishing.runtime, [row])  # refused if a newer one is there
        outcome.tally(route.name).written += 1

    @staticmethod
    def _raised(engine, key):
        for _ in range(TRIES_MAX):
            number = int(engine.read_state([key], consistent=True).get(key, {}).get("r", 0))
            if engine.swap_state(key, {}, number):
                return number + 1
        raise EngineUnavailable("Others join the item too; the record comes again.")

    @staticmethod
    def _values(route, images):
        one, other = images
        return route.function(one, other) if one and other else None

    def expected(self, route, history):
        rows = {}
        for item in history.items:
            fields = fields_of(route, item)
            if fields is not None:
                partner = (route.options.table.name, *route.options.compose(fields))
                one, other = (history.items.get(each) for each in (item, partner))
                if one and other:
                    (target,) = route.into
                    rows[target.table.name, *target.compose(fields)] = route.function(one, other)
        return Expected(rows)


TALLY, JOIN = Tally(), Join()


def declared(router: Router, kind, *sources, **options):
    """Declares a handler of one of these kinds, as a decorator of the framework would."""

    def declare(handler):
        router.declare(kind, *sources, name=handler.__name__, handler=handler, **options)
        return handler

    return declare
