"""Guards of collections, each with what happens without it, in the shortest history that shows it."""

from dataclasses import replace

from streamfold import App, Every, Router, Row
from streamfold.batch import referrers
from streamfold.batch.process import process_changes
from streamfold.commit.pending import PendingWork
from streamfold.derivations.derivation import Finishing, Work
from streamfold.routes.parts import PART
from tests.batch.test_collections import LINE, ORDER, ROWS, Shop, rows_of_orders, shop_of, states
from tests.helpers.looked_up import Meanwhile


def revision(shop, number="1"):
    (ledger,) = [item for key, item in shop.engine.state.items() if key.pk == f"ledger#shop#main#main#S#ORDER#{number}"]
    return int(ledger["r"])


def lines_of(router, **reads):
    @router.index(ORDER, into=ROWS, parts=[Every(LINE, **reads)])
    def lines(order, parts):
        return Row(lines=len(parts(LINE)))


def prices_of(router):
    @router.index(ORDER, into=ROWS, parts=[LINE])
    def prices(order, parts):
        return Row(note=order.get("note", 0), prices=[each["price"] for each in parts(LINE)])


def test_a_visit_writes_though_nothing_differs():
    shop = shop_of(lines_of)
    shop.process(shop.order(), shop.line("a"))
    before = revision(shop)
    shop.process(shop.line("a", price=2))
    assert revision(shop) == before + 1


def test_a_visit_writes_though_there_is_no_ledger_item():
    def never(router):
        @router.index(ORDER, into=ROWS, parts=[LINE])
        def lines(order, parts):
            return Row(lines=3) if len(parts(LINE)) > 1 else None

    shop = shop_of(never)
    shop.order()  # its record was given up
    shop.process(shop.line("a"))
    assert revision(shop) == 1


def test_with_optional_a_visit_of_an_absent_root_writes():
    shop = shop_of(rows_of_orders)
    shop.process(shop.line("a"))
    before = revision(shop)
    shop.process(shop.line("a", price=3))
    shop.line("a", price=None)
    shop.process(shop.gone("LINE#a"))
    after = revision(shop)
    assert after > before
    late = shop.line("b")
    shop.process(late, shop.gone("LINE#b"))
    assert revision(shop) > after


def test_a_part_is_read_and_not_taken_from_its_record():
    shop = shop_of(prices_of)
    shop.process(shop.order())
    first = shop.line("a", price=1)
    shop.line("a", price=2)
    shop.process(first)
    assert shop.row("ROW#1") == {"note": 0, "prices": [2]}


def test_root_and_parts_are_read_behind_the_ledger_item():
    shop = shop_of(lines_of)
    shop.process(shop.order(), shop.line("a"))
    (route,), store = shop.app.routes, Meanwhile(shop.engine)
    change = shop.line("b")
    runtime = replace(shop.runtime(), store=store)
    store.happens = ("read_state", lambda: shop.process(shop.line("c")))
    work = Work(route, change.item, PART, {"order_id": "1", "sku": "b"}, [change])
    outcome = referrers.visit_roots([work], Finishing(runtime, lambda failed: failed, PendingWork()))
    assert (outcome.failed, shop.row("ROW#1")) == ([], {"lines": 3})


def test_a_write_of_older_parts_is_refused_though_the_contribution_is_again_what_it_read():
    shop = shop_of(prices_of)
    shop.process(shop.order(), shop.line("a", price=1))
    store = Meanwhile(shop.engine)
    dearer = shop.line("a", price=2)
    store.happens = ("transact", lambda: shop.process(shop.line("a", price=1)))
    assert process_changes(replace(shop.runtime(), store=store), [dearer]).failures == []
    assert shop.row("ROW#1") == {"note": 0, "prices": [1]}


def test_an_older_record_of_a_root_does_not_bring_its_image_back():
    shop = shop_of(prices_of)
    first, second = shop.order(note=1), shop.order(note=2)
    shop.process(first, second)
    shop.process(first)
    assert shop.row("ROW#1") == {"note": 2, "prices": []}


def test_a_visit_keeps_the_version_of_the_record_before():
    shop = shop_of(prices_of)
    first, second = shop.order(note=1), shop.order(note=2)
    shop.process(first, second)
    shop.process(shop.line("a", price=1))
    shop.process(first)
    assert shop.row("ROW#1") == {"note": 2, "prices": [1]}


def test_a_record_that_comes_after_a_visit_is_not_taken_for_done():
    shop = shop_of(prices_of)
    shop.process(shop.order(note=1))
    shop.process(shop.line("a", price=1))
    shop.process(shop.order(note=2))
    assert shop.row("ROW#1") == {"note": 2, "prices": [1]}


def test_each_record_of_a_part_counts_though_the_first_and_the_last_image_agree():
    shop = shop_of(lines_of)
    shop.process(shop.order(), shop.line("a"))
    gone = shop.gone("LINE#a")
    shop.process(shop.order(note=1))  # reads the collection between both records
    assert shop.row("ROW#1") == {"lines": 0}
    shop.process(gone, shop.line("a"))
    assert shop.row("ROW#1") == {"lines": 1}


def test_a_part_that_comes_or_goes_counts_whatever_it_has():
    shop = shop_of(lambda router: lines_of(router, reads=["price"]))
    shop.process(shop.order())
    shop.process(shop.line("a", note=1))
    assert shop.row("ROW#1") == {"lines": 1}
    before = revision(shop)
    shop.process(shop.line("a", note=2))
    assert revision(shop) == before
    shop.process(shop.gone("LINE#a"))
    assert shop.row("ROW#1") == {"lines": 0}


def test_a_step_that_was_written_in_the_batch_is_the_visit_of_its_root():
    shop = shop_of(states)
    shop.counted(shop.order(), *(shop.line(str(number)) for number in range(10)))
    assert revision(shop) == 1
    assert [call[0] for call in shop.store.calls].count("page") == 2  # of lines, and of shipments


def test_a_redelivered_root_does_not_stand_for_the_visit_of_its_part():
    shop = shop_of(lines_of)
    order = shop.order()
    shop.process(order)
    shop.process(order, shop.line("a"))
    assert shop.row("ROW#1") == {"lines": 1}


def test_a_part_that_comes_between_the_reads_and_the_write_of_a_step_is_in_its_row():
    shop = Shop(application())
    store = Meanwhile(shop.engine)
    other = Shop.__new__(Shop)
    other.__dict__ |= shop.__dict__
    shop.store = store
    store.happens = ("transact", lambda: other.process(other.line("a")))
    order = shop.order()
    shop.process(order)
    assert shop.row("ROW#1") == {"lines": 1}


def application():
    router = Router()
    lines_of(router)
    return App("shop", routers=[router])
