"""What the tests have to notice: the same code with one of its guards made wrong, in one place at a time.

A mutant is a patch of one function. It is killed by a history under faults that leads to other rows than declared, or
breaks an invariant, or by tests of the suite that fail on it. An equivalent one changes how a guard works, and leads to
the declared rows all the same. The list fills when the modules of mutants are imported.
"""

from tests.mutants import (
    aggregates,
    batch,
    call_slots,
    claim,
    collections,
    deltas,
    documents,
    items,
    kinesis,
    ledger,
    lifecycle,
    limits,
    lives,
    logs,
    lookups,
    moments,
    proofs,
    publish,
    recompute,
    repair,
    rules,
    seams,
    shared,
    stages,
    state,
    store,
    timers,
    transactions,
    use,
    writers,
)
from tests.mutants.registry import MUTANTS, Mutant

GUARDS = (
    ledger,
    lives,
    repair,
    transactions,
    claim,
    batch,
    kinesis,
    call_slots,
    recompute,
    aggregates,
    shared,
    deltas,
    lifecycle,
    items,
    documents,
    limits,
    logs,
    lookups,
    collections,
    moments,
    timers,
    publish,
    proofs,
    rules,
    seams,
    stages,
    state,
    store,
    use,
    writers,
)

__all__ = ["GUARDS", "MUTANTS", "Mutant"]
