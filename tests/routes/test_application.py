"""The keys and tables of a declared application."""

import pytest

from streamfold import App, Count, Document, Key, Lookup, Router, Row, Table
from streamfold.errors import DeclarationError

NUMBERS = Table("numbers", partition="id", sort=None)
LINE, NUMBER, ROW = Key("L#{l}", "X"), Key("{p:number}", table=NUMBERS), Key("R#{c}", "T")
PARTS = Table("lines", partition="owner", sort="number")


def looking_up(key=NUMBER):
    router = Router()

    @router.view(LINE, into=ROW, lookup={"number": Lookup(key, p="by")})
    def sales(line, number):
        return Row(c=number["c"], n=Count())

    return App("sums", routers=[router])


def test_keys_are_those_of_sources_targets_and_referents():
    assert set(looking_up().keys) == {LINE, NUMBER, ROW}


def test_keys_have_the_parts_of_documents():
    router = Router()
    item, part = Key("{owner}", "ROOT", table=PARTS), Key("{owner}", "LINE#{number:d}", table=PARTS)

    @router.search(item, to="owners", parts=[part], fields={"n": "long"})
    def owner(item, parts):
        return Document(n=len(parts[part]))

    assert set(App("found", routers=[router]).keys) == {item, part}


def test_a_table_that_only_a_lookup_names_has_the_types_of_its_keys():
    app = looking_up()
    assert app.key_types(app.tables["numbers"]) == {"id": "N"}
    assert app.key_types(app.tables["main"]) == {"PK": "S", "SK": "S"}


def test_an_application_without_handlers_has_key_attributes_of_text():
    app = App("empty", routers=[])
    assert app.key_types(app.tables["main"]) == {"PK": "S", "SK": "S"}


def test_a_table_of_a_lookup_that_is_declared_twice_is_refused():
    router = Router()

    @router.view(LINE, into=ROW, lookup={"number": Lookup(NUMBER, p="by")})
    def sales(line, number):
        return Row(c=number["c"], n=Count())

    @router.view(LINE, into=Key("S#{l}", "T"), lookup={"other": Lookup(Key("O#{p}", "A", Table("numbers")), p="by")})
    def others(line, other):
        return Row(n=Count())

    with pytest.raises(DeclarationError, match="Table 'numbers' is declared twice, differently"):
        App("sums", routers=[router])
