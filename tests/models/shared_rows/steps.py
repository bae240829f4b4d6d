"""The protocol of shared rows, second half: batches, older batches and pages, which commit steps of items."""

from collections.abc import Callable, Iterable, Mapping

from tests.models.shared_rows.emptying import (
    INVOCATION_MAX,
    TRIES_MAX,
    Actor,
    Calls,
    Mutant,
    Settling,
    World,
)
from tests.models.shared_rows.store import (
    ANOTHER,
    CURSOR,
    MANIFEST,
    ON_ROW,
    STRIPES,
    Before,
    Claim,
    Contribution,
    Delta,
    Effect,
    Half,
    Key,
    Ledger,
    Manifest,
    Note,
    Part,
    Parts,
    Pending,
    Refused,
    Row,
    Transaction,
    add_parts,
    added,
    becomes,
    bucket_of,
    difference,
    entered,
    equals,
    is_absent,
    is_free,
    is_too_few,
)

UNREAD = "unread"


class Unit:
    """One step of one item."""

    def __init__(self, item: int, version: int, before: Contribution, after: Contribution) -> None:
        self.key: Key = ("ledger", item)
        self.version, self.before, self.after = version, before, after
        self.first_version = version  # of its first record
        self.is_visit = False  # leads the item to its source, whatever the version
        self.found: Ledger | str | None = UNREAD
        self.guesses = False  # planned without a read: the ledger is assumed to agree with the old image
        self.notes_rows = False  # that it may leave empty; otherwise it requires that they stay
        self.lost: set[str] = set()  # rows that somebody removed: what it takes back from them is dropped
        self.passed: Pending = {}  # what rows that it does not move refuse of earlier steps
        self.replaces: Mapping[Key, Delta] = {}  # what rows refuse of the last step, as it was read
        self.steps = 0  # that were committed with its own

    @property
    def ledger(self) -> Ledger:
        return self.found if isinstance(self.found, Ledger) else Ledger(0, {}, revision=0)

    @property
    def held(self) -> Contribution:
        if self.replaces:
            return gone_back(self.ledger, self.replaces, alone=True)
        return self.before if self.guesses else self.ledger.contribution

    @property
    def moved(self) -> set[str]:
        held = self.held
        return {row for row in {*held, *self.after} if held.get(row) != self.after.get(row)}


def refusing_rows(ledger: Ledger, found: Mapping[Key, Delta]) -> set[str]:
    """The rows whose additions by an item still are in deltas."""
    return {row for name, rows in ledger.pending.items() if name in found for row in rows & {*found[name].parts}}


def gone_back(ledger: Ledger, found: Mapping[Key, Delta], *, alone: bool) -> Contribution:
    """What an item contributed before its last step: to all rows, or to those that refuse alone."""
    assert ledger.before is not None
    refusing, before = refusing_rows(ledger, found), ledger.before.contribution
    target = {row: amount for row, amount in ledger.contribution.items() if alone and row not in refusing}
    return target | {row: amount for row, amount in before.items() if not alone or row in refusing}


class Planned:
    """A transaction of units, with what it puts and notes."""

    def __init__(self) -> None:
        self.transaction = Transaction()
        self.deltas: dict[Key, Delta] = {}
        self.named: dict[Key, dict[Key, frozenset[str]]] = {}  # deltas by ledger item
        self.notes: dict[Key, Note] = {}
        self.direct: Parts = {}


class Committer(Actor):
    """Commits steps: ledger items with rows, or with deltas in place of rows."""

    is_older = False
    may_put = True  # deltas

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.settling = Settling(world)
        self.promises: dict[Key, int] = {}  # by source: the steps committed until then
        self.failed = False  # some record is reported
        self.versions: dict[Key, int] = {}  # of steps of others, that are taken for done
        self.committed_keys: set[Key] = set()

    def commit(self, units: list[Unit]) -> Calls:
        """Commits units together; after a refusal one by one."""
        waiting, tries = [units], 0
        while waiting:
            group, ready = waiting.pop(), list[Unit]()
            for unit in group:
                ready += [unit] if (yield from self.is_ready(unit)) else []
            if not ready:
                continue
            if len(ready) > 1 and any(unit.replaces for unit in ready):  # two of them may have one delta
                waiting += [[unit] for unit in ready]
                continue
            planned = self.planned(ready)
            try:
                yield from self.send(planned)
            except Refused as refused:
                tries += 1
                if tries > TRIES_MAX or not self.learns(ready, planned, refused):
                    self.failed = True
                    continue
                waiting += [[unit] for unit in ready]
                continue
            yield from self.committed(planned, ready)

    def is_ready(self, unit: Unit) -> Calls:
        """Reads what a unit is planned from. False: its item has the change already, or it cannot be planned."""
        if unit.found == UNREAD and not unit.is_visit and self.chance(0.4):
            unit.guesses = True
            return True
        if unit.guesses and unit.found == UNREAD:
            return True
        if unit.found == UNREAD:
            unit.found = yield from self.read(unit.key)
        unit.guesses, unit.passed, unit.replaces, ledger = False, {}, {}, unit.ledger
        if ledger.pending and self.world.takes_back and not self.is_older:
            yield from self.settling.are_settled(ledger.pending)
            as_new = unit.version >= ledger.version or unit.is_visit or self.broken(Mutant.BACK_OLDER)
            refused = {name: self.settling.refused[name] for name in ledger.pending if name in self.settling.refused}
            if as_new and refused and ledger.before is not None:
                # The step replaces what the last one asked of rows that refuse it.
                unit.replaces = refused
                return True
        if ledger.version >= unit.version and not unit.is_visit:
            self.versions[unit.key] = ledger.version
            self.promises[unit.key] = ledger.steps
            if not self.broken(Mutant.REDELIVERY_EARLY):
                self.settling.wait_for(ledger.pending)
            if ledger.note:
                yield from self.finish(unit.key, ledger.note)
            return False
        if self.is_older or self.broken(Mutant.STEP_OVERTAKES) or not ledger.pending:
            return True
        moved = {name: rows & unit.moved for name, rows in ledger.pending.items()}
        ready = yield from self.settling.are_settled(moved)
        self.failed = self.failed or not ready
        # What a row refuses, and this step does not move, stays named: a later step has to wait for it (guard 10).
        refused = self.settling.refused if not self.broken(Mutant.ASIDE_UNNAMED) else {}
        named = ((name, rows & refused[name].parts.keys()) for name, rows in ledger.pending.items() if name in refused)
        unit.passed = {name: rows for name, rows in named if rows}
        return ready

    def took_back(self, key: Key) -> Calls:
        """Takes the last step of an item back, whose additions a row refuses (guard 13)."""
        for alone in (False, True):  # all that it moved, or what a row refuses
            for _ in range(TRIES_MAX):
                ledger = yield from self.read(key)
                if not isinstance(ledger, Ledger) or not ledger.pending:
                    return True
                found = yield from self.read_together([*ledger.pending])
                if not found:
                    return True
                if ledger.before is None or any(not delta.refused for delta in found.values()):
                    return False
                if not ledger.pending.keys() <= self.settling.own.keys() and not self.broken(Mutant.BACK_OF_OTHERS):
                    return False
                try:
                    yield from self.send_back(self.way_back(key, ledger, found, alone=alone))
                except Refused as refused:
                    if any(where[0] == "row" for where in refused.found):
                        break
                    continue
                return True
        return False

    def way_back(self, key: Key, ledger: Ledger, found: Mapping[Key, Delta], *, alone: bool) -> Transaction:
        """One transaction: the ledger item goes back, and its share leaves the deltas, which are as they were read."""
        assert ledger.before is not None
        version, step, back = ledger.before.version, self.world.new_number(), Transaction()
        refusing, target = refusing_rows(ledger, found), gone_back(ledger, found, alone=alone)
        self.take_shares(back, key, ledger, found)
        reverse = difference(ledger.contribution, target, key, ledger.version, step)
        for row, part in sorted(reverse.items()):
            if row in refusing or self.broken(Mutant.BACK_BESIDE):
                continue
            back.committed += part.effects
            back.applied += part.effects
            required = max(part.contributors_min, 1 - part.both.contributors)
            back.write(("row", row), is_free(required), added(part.both))

        def change(found: Ledger) -> Ledger:
            steps = len(self.store.steps) + bool(back.committed)
            return found._replace(
                version=version,
                contribution=target,
                pending={},
                before=None,
                revision=found.revision + 1,
                steps=steps,
            )

        back.write(key, lambda now: now is not None and now.revision == ledger.revision, change)
        return back

    def take_shares(self, back: Transaction, key: Key, ledger: Ledger, found: Mapping[Key, Delta]) -> None:
        """Takes what an item adds out of deltas, each of which has to be as it was read."""
        assert ledger.before is not None
        changed = difference(ledger.before.contribution, ledger.contribution, key, ledger.version, 0)
        for name, delta in sorted(found.items()):
            parts = dict(delta.parts)
            for row in sorted(ledger.pending[name] & parts.keys()):
                own = frozenset(effect for effect in parts[row].effects if effect.source == key)
                back.undone += own
                parts[row] = parts[row].without(changed[row], own)
                if not parts[row].effects or self.broken(Mutant.BACK_WHOLE):
                    del parts[row]
            unread = self.broken(Mutant.BACK_UNREAD)
            condition = (lambda _: True) if unread else equals(delta)
            back.write(name, condition, becomes(Delta(parts, delta.refused) if parts else None))

    def send_back(self, back: Transaction) -> Calls:
        if not self.broken(Mutant.BACK_APART):
            yield from self.transact(back)
            return
        ledger = Transaction([write for write in back.writes if write.key[0] != "delta"])
        ledger.committed, ledger.applied = back.committed, back.applied
        deltas = Transaction([write for write in back.writes if write.key[0] == "delta"], undone=back.undone)
        yield from self.transact(ledger)
        yield from self.transact(deltas)

    def planned(self, units: list[Unit]) -> Planned:
        planned, carried = Planned(), dict[int, Parts]()
        of_unit: dict[Key, set[str]] = {}  # rows that it adds to by deltas
        for unit in units:
            step = self.world.new_number()
            parts = difference(unit.held, unit.after, unit.key, unit.version, step)
            noted: set[str] = set()
            if unit.replaces:
                self.take_shares(planned.transaction, unit.key, unit.ledger, unit.replaces)
            for row, part in parts.items():
                planned.transaction.committed += part.effects
                if self.may_put and self.chance(self.world.share_of_deltas):
                    add_parts(carried.setdefault(bucket_of(row), {}), {row: part})
                    of_unit.setdefault(unit.key, set()).add(row)
                else:
                    add_parts(planned.direct, {row: part})
                    if part.both.contributors < 0 and unit.notes_rows and row not in unit.lost:
                        noted.add(row)
            note = unit.ledger.note
            if noted or note:  # joins what earlier steps left
                planned.notes[unit.key] = Note(step, frozenset({*noted, *(note.rows if note else ())}))
        self.put(planned, carried)
        for key, rows in of_unit.items():  # guard 4
            named = {name: frozenset(rows & delta.parts.keys()) for name, delta in planned.deltas.items()}
            planned.named[key] = {name: some for name, some in named.items() if some}
        for unit in units:
            self.write_ledger(planned, unit)
        self.add_directly(planned, units)
        return planned

    def put(self, planned: Planned, carried: Mapping[int, Parts]) -> None:
        """One delta for each bucket, under a name that was never used."""
        for bucket, parts in sorted(carried.items()):
            number = self.world.new_number()
            if self.broken(Mutant.NAME_AGAIN):
                number = bucket
            planned.deltas["delta", bucket, self.random.randrange(STRIPES), number] = Delta(parts)
        for name, delta in planned.deltas.items():
            condition = (lambda _: True) if self.broken(Mutant.NAME_AGAIN) else is_absent
            planned.transaction.write(name, condition, becomes(delta))  # guard 2

    def write_ledger(self, planned: Planned, unit: Unit) -> None:
        named = {} if self.broken(Mutant.NAMES_FORGOTTEN) else planned.named.get(unit.key, {})
        pending = {**unit.passed, **named}
        note, is_older = planned.notes.get(unit.key), self.is_older
        committed = {effect.step for effect in planned.transaction.committed}

        def change(found: Ledger | None) -> Ledger:
            found = found or Ledger(0, {}, revision=0)
            kept = found.pending if is_older else pending
            replaced = unit.replaces and not unit.is_visit  # BACK_OLDER alone lets the version fall
            version = unit.version if replaced else max(unit.version, found.version)
            steps = len(self.store.steps) + len(committed)
            unit.steps = steps
            version_before = unit.first_version - 1 if unit.guesses else unit.ledger.version
            if unit.replaces and unit.ledger.before is not None and not unit.is_visit:
                version_before = unit.ledger.before.version
            before = Before(version_before, unit.held) if named and not unit.passed and not is_older else None
            return Ledger(version, unit.after, kept, note, found.revision + 1, steps, before)

        planned.transaction.write(unit.key, self.ledger_guard(unit), change)

    def ledger_guard(self, unit: Unit) -> Callable[[Ledger | None], bool]:
        if self.broken(Mutant.VERSION_ALONE):
            return lambda found: found is None or found.version < unit.version
        if not unit.guesses:
            # The revision stands for the names too, of which the process has asked whether they are gone.
            return lambda found: (found.revision if found else 0) == unit.ledger.revision
        gone = self.world.settled.get(unit.key)
        passes = self.is_older or self.broken(Mutant.GUESS_OVERTAKES)

        def guard(found: Ledger | None) -> bool:
            if found is None:
                return not unit.before
            as_before = found.version < unit.version and found.contribution == unit.before and not found.note
            return as_before and (passes or found.pending in ({}, gone))  # guard 5

        return guard

    def add_directly(self, planned: Planned, units: list[Unit]) -> None:
        """Additions to rows in the ledger's own transaction, as today."""
        lost = {row for unit in units for row in unit.lost}
        noting = any(unit.notes_rows for unit in units)
        for row, part in sorted(planned.direct.items()):
            if row in lost:
                planned.transaction.dropped += [effect for effect in part.effects if not effect.enters]
                planned.transaction.applied += [effect for effect in part.effects if effect.enters]
                unseen = self.broken(Mutant.DROPPED_UNSEEN)
                planned.transaction.write(("row", row), is_too_few(part, unseen=unseen), entered(part.entering))
                continue
            planned.transaction.applied += part.effects
            if part.both == Half():
                continue  # who comes and who leaves cancel each other out: as today, the row is not written
            stays = part.both.contributors < 0 and not noting
            required = max(part.contributors_min, 1 - part.both.contributors) if stays else part.contributors_min
            planned.transaction.write(("row", row), is_free(required), added(part.both))

    def send(self, planned: Planned) -> Calls:
        apart = self.broken(Mutant.PUT_BEFORE, Mutant.PUT_AFTER)
        if not apart:
            yield from self.transact(planned.transaction)
            return
        whole = planned.transaction
        deltas = Transaction([write for write in whole.writes if write.key[0] == "delta"])
        ledger = Transaction([write for write in whole.writes if write.key[0] != "delta"])
        ledger.committed, ledger.applied, ledger.dropped = whole.committed, whole.applied, whole.dropped
        for transaction in (deltas, ledger) if self.broken(Mutant.PUT_BEFORE) else (ledger, deltas):
            yield from self.transact(transaction)

    def learns(self, units: list[Unit], planned: Planned, refused: Refused) -> bool:
        """Plans units again from what was found. False: a row refuses for good."""
        held = {unit.key: unit for unit in units if unit.key in refused.found}
        for key, unit in held.items():
            unit.found, unit.guesses = (UNREAD if unit.is_visit else refused.found[key]), False
            unit.lost.clear()
        if held or len(units) > 1:
            return True
        (unit,) = units
        for key, found in refused.found.items():
            if key[0] != "row":
                continue
            row, part, counted = key[1], planned.direct[key[1]], found or Row()
            if counted.owner == ANOTHER:
                return False
            if row in unit.lost:
                unit.lost.discard(row)  # it was mended meanwhile
            elif counted.contributors < part.contributors_min:
                unit.lost.add(row)
            else:
                unit.notes_rows = True
        return True

    def committed(self, planned: Planned, units: Iterable[Unit]) -> Calls:
        self.settling.own |= planned.deltas
        for unit in units:
            self.promises[unit.key] = unit.steps
            self.committed_keys.add(unit.key)
            self.settling.wait_for({**unit.passed, **planned.named.get(unit.key, {})})
        for key, note in planned.notes.items():
            yield from self.finish(key, note)

    def finish(self, key: Key, note: Note) -> Calls:
        """Removes rows that count nobody, then the note, as today."""
        for row in sorted(note.rows):
            yield from self.write(
                ("row", row),
                lambda found: found is not None and found.contributors == 0 and found.owner != ANOTHER,
                becomes(None),
            )
        yield from self.write(
            key, lambda found: found is not None and found.note == note, lambda found: found._replace(note=None)
        )

    def end(self) -> Calls:
        """Whether the work is done: all that it put, and all that its items name, is in the rows."""
        if not self.broken(Mutant.EARLY) and not (yield from self.settling.settled()):
            if self.settling.refused and self.world.takes_back:
                # The records are processed again: here in the next batch, in the code at once, without deltas.
                for key in sorted(self.promises):
                    if key[0] == "ledger" and key in self.committed_keys and (yield from self.took_back(key)):
                        self.failed = True
            return False
        for key, version in () if self.broken(Mutant.BACK_UNSEEN_BY_OTHERS) else sorted(self.versions.items()):
            ledger = yield from self.read(key)
            if ledger is None or ledger.version < version:  # its process took the step back
                return False
        return not self.failed


class Batch(Committer):
    """An invocation for some records of a lane: (item, version, old image's contribution, new image's)."""

    def __init__(self, world: World, records: list[tuple[int, int, Contribution, Contribution]], *, on: bool) -> None:
        super().__init__(world)
        self.records, self.on = records, on
        self.together = self.chance(0.6)  # all items in one transaction, as far as none is refused
        self.factor = 2 if self.chance(0.2) else 1  # another version of the functions: every amount twice

    def run(self) -> Calls:
        """Whether the batch is acknowledged."""
        if not (yield from self.begins()):
            return False
        units: dict[int, Unit] = {}
        for item, version, before, after in self.records:
            first = units[item].before if item in units else self.derived(before)
            first_version = units[item].first_version if item in units else version
            units[item] = Unit(item, version, first, self.derived(after))
            units[item].first_version = first_version
        for group in [[*units.values()]] if self.together else [[unit] for unit in units.values()]:
            yield from self.commit(group)
        for item, version, _, after in self.records if self.on else ():
            yield from self.claim(("claim", item, version), version, sum(after.values()))
        done = yield from self.end()
        if done and not self.settling.refused:
            self.world.settled.update(self.own_names())
        return done

    def own_names(self) -> dict[Key, Pending]:
        """What the process remembers: names in ledger items of which it knows that nothing is pending."""
        found = {}
        for unit_key in self.promises:
            ledger = self.store.items.get(unit_key)
            if isinstance(ledger, Ledger) and ledger.pending and self.settling.own.keys() >= {*ledger.pending}:
                found[unit_key] = ledger.pending
        return found

    def derived(self, contribution: Contribution) -> Contribution:
        return {row: self.factor * amount for row, amount in contribution.items()}

    def begins(self) -> Calls:
        """Reads the manifest, as each batch does. Adds the mark; deltas are put by batches that begin later."""
        found = yield from self.read(MANIFEST)
        if not found.deltas and not found.closed and self.chance(0.5):
            now = self.store.now
            yield from self.write(MANIFEST, equals(found), becomes(Manifest(deltas=True, since=now)))
            found = found._replace(deltas=True, since=now)
        ripe = self.broken(Mutant.PUT_AT_ONCE) or found.since + INVOCATION_MAX <= self.store.now
        self.may_put = found.deltas and not found.closed and ripe
        return True

    def claim(self, key: Key, version: int, amount: int) -> Calls:
        """One change of an ``on`` handler that adds to a row."""
        source, step = key, self.world.new_number()
        part = Part(Half(amount, 1), effects=frozenset({Effect(source, version, step, ON_ROW, enters=True)}))
        claim, deltas = Transaction(committed=list(part.effects)), dict[Key, Delta]()
        if self.may_put and self.chance(self.world.share_of_deltas):
            name = ("delta", bucket_of(ON_ROW), self.random.randrange(STRIPES), self.world.new_number())
            deltas[name] = Delta({ON_ROW: part})
            claim.write(name, is_absent, becomes(deltas[name]))
        else:
            claim.applied += part.effects
            claim.write(("row", ON_ROW), is_free(0), added(part.both))
        pending = dict.fromkeys(deltas, frozenset({ON_ROW}))
        claim.write(key, is_absent, becomes(Claim({} if self.broken(Mutant.CLAIM_FORGETS) else pending)))
        try:
            yield from self.transact(claim)
        except Refused as refused:
            if key not in refused.found:
                self.failed = True  # the row refuses
                return
            self.promises[key] = len(self.store.steps)
            if not self.broken(Mutant.CLAIM_EARLY):
                self.settling.wait_for(refused.found[key].pending)
            return
        self.settling.own |= deltas
        self.promises[key] = len(self.store.steps)
        self.settling.wait_for(pending)


class OlderBatch(Batch):
    """Code of before, with ``STREAMFOLD_OLDER_CODE=on``: it knows neither deltas nor the names in ledger items."""

    is_older = True

    def begins(self) -> Calls:
        found = yield from self.read(MANIFEST)
        self.may_put = False
        # It compares the targets of handlers that it knows, and stops.
        return not found.deltas or self.broken(Mutant.OLDER_PASSES)

    def end(self) -> Calls:
        yield from ()
        return not self.failed


class Page(Batch):
    """A page of a backfill: visits items, then moves the cursor."""

    SIZE = 2

    def __init__(self, world: World) -> None:
        super().__init__(world, [], on=False)

    def run(self) -> Calls:
        yield from self.begins()
        cursor = yield from self.read(CURSOR)
        items = sorted(self.world.sources)[cursor : cursor + self.SIZE]
        for source in items:
            # After a refusal ledger item and source are read again: both come with the unit here.
            unit = Unit(source[1], 0, {}, self.derived(self.world.sources[source]))
            unit.is_visit = True
            yield from self.commit([unit])
        if not self.broken(Mutant.CURSOR_EARLY) and not (yield from self.end()):
            return False
        if self.failed or not items:
            return False
        after = cursor + len(items)
        return (yield from self.write(CURSOR, equals(cursor), becomes(after)))
