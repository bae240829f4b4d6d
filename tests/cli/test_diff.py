"""``streamfold diff``: what changed code would make of items, side by side, and nothing is written."""

import json
import subprocess
from hashlib import sha256

import pytest

from tests.cli.conftest import SHOP
from tests.helpers.commands import command_line, environment

STATE = ("--state", "state.db")
OLD = ("--old", "handlers:app@./before")


@pytest.fixture
def shop(folder, source):
    """A state of three lines, and the code as it was in the folder ``before``."""
    records = [source.put(f"ORDER#{number}", "ITEM#a", price=number) for number in (1, 2, 3)]
    assert folder.run("replay", folder.records(*records), *STATE).code == 0
    folder.write("before/handlers.py", SHOP)
    return folder


def state_of(folder):
    return sha256((folder.path / "state.db").read_bytes()).hexdigest()


def test_the_same_code_makes_the_same_rows(shop):
    ran = shop.run("diff", *OLD, *STATE)
    assert (ran.code, ran.err) == (0, "")
    assert ran.out == "order_total: 3 items, all the same\n3 items were compared.\n"


def test_rows_and_attributes_that_change_stand_side_by_side_and_nothing_is_written(shop):
    shop.app(
        SHOP.replace("lines=Count()", 'lines=Count(), most=Max(item["price"])')
        .replace('Sum(item["price"])', 'Sum(2 * item["price"])')
        .replace("Key, ", "Key, Max, ")
    )
    before = state_of(shop)
    ran = shop.run("diff", *OLD, *STATE)
    lines = {tuple(line.split()) for line in ran.out.splitlines()}
    assert ran.code == 1
    assert ("order_total", "ORDER#2", "/", "ITEM#a", "ORDER#2", "/", "TOTAL", "total", "2", "4") in lines
    assert ("order_total", "ORDER#3", "/", "ITEM#a", "ORDER#3", "/", "TOTAL", "most", "3") in lines
    assert ran.out.splitlines()[-2:] == [
        "order_total: 3 of 3 items change: 3 rows otherwise, 0 more, 0 fewer; most in 3, total in 3",
        "3 items were compared.",
    ]
    assert state_of(shop) == before


def test_json_has_rows_that_move_and_what_raises(shop):
    without = ['if item["price"] == 1:', '    raise LookupError("no price 1")', 'if item["price"] == 2:', "    return"]
    without = ['if item["price"] == 1:', '    raise LookupError("no price 1")', 'if item["price"] == 2:', "    return"]
    changed = SHOP.replace("    yield Row(", "".join(f"    {line}\n" for line in without) + "    yield Row(")
    shop.app(changed)
    ran = shop.run("diff", "order_total", *OLD, *STATE, "--json")
    found = json.loads(ran.out)
    (change,) = found["changes"]
    assert (ran.code, found["items"], found["old"]) == (1, 3, "./before")
    assert (change["key"]["PK"], change["row"]["key"]["SK"], change["new"]) == ({"S": "ORDER#2"}, {"S": "TOTAL"}, None)
    assert change["old"] == {"total": {"N": "2"}, "lines": {"N": "1"}}
    assert found["handlers"]["order_total"] == {
        "items": 2,
        "changed": 1,
        "rows": {"other": 0, "more": 0, "fewer": 1},
        "attributes": {"lines": 1, "total": 1},
    }
    (raised,) = found["raised"]["new"]
    assert (raised["error"], raised["message"], raised["items"]) == ("LookupError", "no price 1", 1)
    assert raised["first"]["key"]["PK"] == {"S": "ORDER#1"}


def test_what_only_the_old_code_raises_is_told_and_is_no_difference(shop):
    shop.write("before/handlers.py", SHOP.replace("    yield Row", '    item["missing"]\n    yield Row'))
    ran = shop.run("diff", *OLD, *STATE)
    assert ran.code == 0
    assert "The old 'order_total' raises AttributeMissing on 3 items, first on ORDER#" in ran.err


def test_what_the_new_code_raises_is_the_end(shop):
    shop.app(SHOP.replace("    yield Row", '    item["missing"]\n    yield Row'))
    command = command_line("diff", *OLD, *STATE)
    merged = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    ran = subprocess.run(command, cwd=shop.path, env=environment(), text=True, check=False, **merged)
    assert ran.returncode == 1
    assert ran.stdout.splitlines()[-1].startswith("The new 'order_total' raises AttributeMissing on 3 items, first on")


MORE = """

@router.index(ITEM, into=Key("SKU#{sku}", "ORDER#{order_id}"))
def by_sku(item):
    return Row(price=item["price"])


app ="""


def test_a_new_handler_shows_all_of_its_rows_and_one_that_is_gone_is_named(shop):
    shop.app(SHOP.replace("\n\napp =", MORE))
    ran = shop.run("diff", "by_sku", *OLD, *STATE)
    assert "Handler 'by_sku' is in the new code only: all of its rows are new." in ran.err
    assert "by_sku: 3 of 3 items change: 0 rows otherwise, 3 more, 0 fewer; price in 3" in ran.out
    shop.write("before/handlers.py", SHOP.replace("\n\napp =", MORE))
    shop.app(SHOP)
    assert "'by_sku' is in the old code only: it is left out." in shop.run("diff", *OLD, *STATE).err


def test_what_handlers_print_is_no_answer(shop):
    shop.write("before/handlers.py", SHOP.replace("    yield Row", '    print("seen")\n    yield Row'))
    assert shop.run("diff", *OLD, *STATE).code == 0


def test_code_of_a_revision_is_laid_out_beside_the_files_that_changed(shop):
    def git(*arguments):
        subprocess.run(
            ["git", "-c", "user.name=a", "-c", "user.email=a@b", *arguments], check=True, capture_output=True
        )

    git("init", "-q")
    git("add", "handlers.py")
    git("commit", "-qm", "first")
    shop.app(SHOP.replace('Sum(item["price"])', 'Sum(3 * item["price"])'))
    ran = shop.run("diff", "--old", "handlers:app@HEAD", *STATE)
    assert (ran.code, "total in 3" in ran.out) == (1, True), ran.err
    assert "git knows no revision 'nowhere'" in shop.run("diff", "--old", "handlers:app@nowhere", *STATE).err
    assert "git knows no revision '--help'" in shop.run("diff", "--old", "handlers:app@--help", *STATE).err


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--old", "handlers:app"], "expected MODULE:NAME@REVISION"),
        (["--old", "handlers@main"], "expected MODULE:NAME@REVISION"),
        (["--old", "handlers:app@./nowhere"], "There is no folder ./nowhere"),
        (["--old", "handlers:app@main"], "git knows no revision 'main' here"),
        (["--old", "handlers:nothing@./before"], "the module has no 'nothing'"),
        ([*OLD, "--new", "handlers:app@main"], "--old takes a revision too"),
        (["missing", *OLD], "'missing'"),
    ],
)
def test_what_cannot_be_compared_is_refused(shop, arguments, text):
    ran = shop.run("diff", *arguments, *STATE)
    assert (ran.code, text in ran.err) == (2, True), ran.err


def test_old_code_that_does_not_load_is_told(shop):
    shop.write("before/handlers.py", "1 / 0")
    assert "The code of ./before cannot be used." in shop.run("diff", *OLD, *STATE).err
    shop.write("before/handlers.py", SHOP.replace('App("shop"', 'App("other"'))
    assert "The old code is of application 'other'" in shop.run("diff", *OLD, *STATE).err


def test_code_that_is_found_elsewhere_is_not_taken_for_the_old_one(shop, monkeypatch):
    shop.write("empty/other.py", "")
    monkeypatch.setenv("PYTHONPATH", str(shop.path))
    ran = shop.run("diff", "--old", "handlers:app@./empty", *STATE)
    assert (ran.code, "and not in the old code" in ran.err) == (2, True), ran.err


def test_old_code_that_ends_is_told(shop):
    shop.write("before/handlers.py", SHOP.replace("    yield Row", "    import os\n    os._exit(3)\n    yield Row"))
    ran = shop.run("diff", *OLD, *STATE)
    assert (ran.code, "ended by itself" in ran.err) == (2, True)


def test_items_of_aws_are_compared_and_none_is_written(on_aws, source):
    on_aws.deliver(*(source.put(f"ORDER#{number}", "ITEM#a", price=number) for number in (1, 2)))
    on_aws.folder.write("before/handlers.py", SHOP)
    on_aws.folder.app(SHOP.replace("lines=Count()", "lines=Sum(2)"))
    state = on_aws.state()
    ran = on_aws.run("diff", *OLD)
    assert (ran.code, "order_total: 2 of 2 items change" in ran.out) == (1, True), ran.err
    assert on_aws.state() == state


LOOKED_UP = """
from streamfold import App, Key, Lookup, Router, Row, Sum

LINE, PRODUCT = Key("ORDER#{order_id}", "ITEM#{sku}"), Key("PRODUCT#{product_id}", "META")
SUPPLIER = Key("SUPPLIER#{supplier_id}", "META")
router = Router()


@router.view(LINE, into=Key("CATEGORY#{category}", "SALES"), lookup={"product": PRODUCT})
def sales(line, product):
    return Row(category=product["category"], units=Sum(line["quantity"]))


app = App("shop", routers=[router])
"""
BY_SUPPLIER = (
    LOOKED_UP.replace('{"product": PRODUCT}', '{"product": PRODUCT, "supplier": Lookup(SUPPLIER, through="product")}')
    .replace("(line, product)", "(line, product, supplier)")
    .replace('category=product["category"]', 'category=supplier["name"]')
)


@pytest.fixture
def looked_up(folder, source):
    """A state of two lines, their product and its supplier."""
    folder.app(LOOKED_UP)
    records = [
        source.put("SUPPLIER#s", "META", name="farm"),
        source.put("PRODUCT#p", "META", category="tea", supplier_id="s"),
        *(source.put(f"ORDER#{number}", "ITEM#a", product_id="p", quantity=number) for number in (1, 2)),
    ]
    assert folder.run("replay", folder.records(*records), *STATE).code == 0
    folder.write("before/handlers.py", LOOKED_UP)
    return folder


def test_both_sides_get_the_items_that_each_looks_up(looked_up):
    assert looked_up.run("diff", *OLD, *STATE).out == "sales: 2 items, all the same\n2 items were compared.\n"
    looked_up.app(BY_SUPPLIER)
    before = state_of(looked_up)
    found = json.loads(looked_up.run("diff", *OLD, *STATE, "--json").out)
    keys = [(each["row"]["key"]["PK"]["S"], each["old"] is None) for each in found["changes"]]
    assert sorted(keys) == [("CATEGORY#farm", True)] * 2 + [("CATEGORY#tea", False)] * 2
    assert (found["raised"], state_of(looked_up)) == ({"old": [], "new": []}, before)


def test_a_handler_that_gains_a_lookup_is_compared_with_the_one_without(looked_up):
    plain = LOOKED_UP.replace(', lookup={"product": PRODUCT}', "").replace("(line, product)", "(line)")
    looked_up.write("before/handlers.py", plain.replace('product["category"]', '"all"'))
    ran = looked_up.run("diff", *OLD, *STATE)
    assert (ran.code, "sales: 2 of 2 items change: 0 rows otherwise, 2 more, 2 fewer" in ran.out) == (1, True), ran.err


def test_reading_what_reads_does_not_list_is_an_error_of_the_new_code(looked_up):
    looked_up.app(LOOKED_UP.replace('"product": PRODUCT', '"product": Lookup(PRODUCT, reads=["name"])'))
    ran = looked_up.run("diff", *OLD, *STATE)
    assert (ran.code, "The new 'sales' raises HandlerError on 2 items" in ran.err) == (1, True)
    assert 'Write reads=["category", "name"].' in ran.err
