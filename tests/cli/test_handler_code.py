"""Which handlers an edit concerns: digests of their code, and what depends on what."""

import sys
from pathlib import Path

import pytest

from streamfold.cli.handler_code import ApplicationCode, Dependencies

HANDLERS = """
from streamfold import App, Count, Key, Max, Router, Row, Sum
from prices import RATE, charged
import words

ITEM = Key("ORDER#{order_id}", "ITEM#{sku}")
TOTAL = Key("ORDER#{order_id}", "TOTAL")
DAY = Key("DAY#{day}", "TOTAL")
LONGEST = Key("ORDER#{order_id}", "LONGEST")

router = Router()


@router.view(ITEM, into=TOTAL)
def order_total(item):
    return Row(total=Sum(charged(item)))


@router.view(TOTAL, into=DAY)
def daily(row):
    return Row(day="today", total=Sum(row["total"]))


@router.view(ITEM, into=LONGEST)
def longest(item):
    return Row(letters=Max(words.letters(item)))


app = App("shop", routers=[router])
"""
PRICES = """
RATE = 2


def charged(item):
    return RATE * item["price"]


def unused(item):
    return 3
"""
WORDS = """
def letters(item):
    return len(item["name"])
"""


@pytest.fixture
def digests(folder):
    """The digests of the handlers, of files with some texts replaced."""

    def digests(*edits):
        texts = {"handlers.py": HANDLERS, "prices.py": PRICES, "words.py": WORDS}
        for name, old, new in edits:
            assert old in texts[name]
            texts[name] = texts[name].replace(old, new)
        for name, text in texts.items():
            folder.write(name, text)
        for name in ("prices", "words"):
            sys.modules.pop(name, None)
        app = folder.load()
        modules = {name: Path(sys.modules[name].__file__) for name in ("handlers", "prices", "words")}
        return ApplicationCode(modules, []).digests(app)

    return digests


def changed(digests, *edits):
    before, after = digests(), digests(*edits)
    return {name for name in after if before.get(name) != after[name]}


@pytest.mark.parametrize(
    ("edit", "expected"),
    [
        pytest.param(("handlers.py", "Sum(charged(item))", "Sum(5)"), {"order_total"}, id="its own body"),
        pytest.param(("handlers.py", '"LONGEST")', '"MOST")'), {"longest"}, id="a key that it names"),
        pytest.param(("handlers.py", "ITEM, into=TOTAL", "ITEM, into=[TOTAL]"), {"order_total"}, id="its declaration"),
        pytest.param(("prices.py", "RATE = 2", "RATE = 4"), {"order_total"}, id="a value behind a function of another"),
        pytest.param(("prices.py", "return 3", "return 4"), set(), id="a function that none calls"),
        pytest.param(("words.py", "len(", "2 * len("), {"longest"}, id="a module that it names"),
        pytest.param(
            ("handlers.py", "\n\n\n@router.view(TOTAL", "\n# a word\n\n@router.view(TOTAL"), set(), id="a comment"
        ),
        pytest.param(("prices.py", "RATE = 2", "RATE = 2\nprint()"), {"order_total"}, id="a statement without a name"),
        pytest.param(("handlers.py", 'App("shop"', 'App("shop2"'), {"order_total", "daily", "longest"}, id="the name"),
        pytest.param(("handlers.py", "Router()", "Router( )  # one"), set(), id="layout"),
    ],
)
def test_an_edit_changes_the_digests_of_the_handlers_that_it_is_of(digests, edit, expected):
    assert changed(digests, edit) == expected


def test_a_handler_of_a_function_that_makes_handlers_is_of_all_files(folder):
    folder.app(
        """
from streamfold import App, Count, Key, Router, Row

router = Router()


def make(name):
    @router.view(Key("A#{a}", "B"), into=Key("A#{a}", name), name=name)
    def handler(item):
        return Row(count=Count())


make("first")
app = App("shop", routers=[router])
"""
    )
    app = folder.load()
    file = Path(sys.modules["handlers"].__file__)
    before = ApplicationCode({"handlers": file}, []).digests(app)
    file.write_text(file.read_text().replace("app = ", "unrelated = 1\napp = "))
    assert ApplicationCode({"handlers": file}, []).digests(app) != before


def test_a_file_that_is_no_module_is_of_all_handlers(folder, tmp_path):
    app, file = folder.load(), Path("mapping.json")
    modules = {"handlers": Path(sys.modules["handlers"].__file__)}
    file.write_text("{}")
    before = ApplicationCode(modules, [file]).digests(app)
    file.write_text("[]")
    after = ApplicationCode(modules, [file]).digests(app)
    assert all(after[name] != before[name] for name in before)


def test_readers_of_a_row_depend_on_its_writer(digests, folder):
    digests()
    dependencies = Dependencies(folder.load().routes)
    assert dependencies.concerned({"order_total"}) == {"order_total", "daily"}
    assert dependencies.concerned({"longest"}) == {"longest"}
    assert dependencies.needed({"daily"}) == {"daily", "order_total"}
