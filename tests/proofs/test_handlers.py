"""Records that are put aside between others, by a handler that raises or is switched off, and redriven at the end."""

from streamfold import Add, App, Count, Key, Router, Row, Sum
from streamfold.proofs.check import FAULTS
from streamfold.proofs.handlers import ProofParking
from streamfold.testing import Diverged, check

LINE = Key("ORDER#{order_id}", "LINE#{sku}")
TOTAL = Key("ORDER#{order_id}", "TOTAL")
CHANGES = Key("CHANGES", "TOTAL")
ITEMS = {LINE: [{"price": 3}, {"price": 5}]}


def application():
    router = Router()

    @router.view(LINE, into=TOTAL, on_error="park")
    def total(line):
        yield Row(total=Sum(line["price"]), lines=Count())

    @router.on(LINE, into=CHANGES, on_error="park", attempts_max=2)
    def changes(change):
        yield Add(changes=1)

    return App("shop", routers=[router])


def test_records_that_are_parked_between_others_are_redriven():
    proof = check(application(), ITEMS, histories=60, faults=["raises-once", "raises-for-one", "overlap"])
    assert proof.faults["raises-once"]


def test_a_parked_record_that_is_never_redriven_is_noticed(monkeypatch):
    monkeypatch.setattr(ProofParking, "park", lambda *_: None)
    for faults in (["raises-once"], ["switched-off"]):
        try:
            check(application(), ITEMS, histories=300, faults=faults)
        except Diverged:
            continue
        raise AssertionError(f"not noticed: {faults}")


def test_handlers_that_are_switched_off_for_a_while_end_with_the_right_rows():
    assert check(application(), ITEMS, histories=60, faults=["switched-off"]).faults["switched-off"]


def test_records_of_kinesis_are_parked_too(monkeypatch):
    parked, park = [], ProofParking.park
    monkeypatch.setattr(ProofParking, "park", lambda self, each: (park(self, each), parked.append(each))[0])
    check(application(), ITEMS, histories=20, source="kinesis", faults=["switched-off"])
    assert parked  # a refusal raises


def test_records_meet_another_process_of_the_same_application():
    assert check(application(), ITEMS, histories=60, faults=["other-process"]).faults["other-process"]


def test_the_new_faults_can_be_asked_for_by_name():
    assert {"switched-off", "other-process"} <= set(FAULTS)
