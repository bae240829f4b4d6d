"""The procedure after a restore, as docs/operations.md has it, on DynamoDB Local: also of a command that is killed."""

import pytest

from streamfold.derivations.search.local import LocalIndex
from streamfold.engines import DynamoEngine, MemoryEngine
from streamfold.keys.table import MAIN
from tests.cli import conftest
from tests.helpers import restored
from tests.helpers.source import Source
from tests.helpers.tables import make_table

folder = conftest.folder
URL = "http://127.0.0.1:9200"


class Server(LocalIndex):
    """The indexes of a server: no part of a backup, with what was sent before, and longer there than a state."""

    def __init__(self):
        super().__init__(MemoryEngine([MAIN]))

    def close(self):
        """Its engine is in memory."""


class Restored:
    """A table that went on after its backup, a restored one with an empty state, and one that has the items alone."""

    def __init__(self, client, folder, options):
        self.client, self.folder, self.options = client, folder, options
        folder.app(restored.WITH_SEARCH)
        for name in ("shop", "restored", "anew"):
            make_table(client, name, {"PK": "S", "SK": "S"})
        for name in ("state", "state-2", "state-3"):
            make_table(client, name, {"pk": "S", "sk": "S"})
        self.index, self.right = Server(), Server()
        first, later = restored.written(Source())
        app = folder.load()
        restored.derive(app, client, "shop", "state", first, documents=self.index)
        restored.derive(app, client, "shop", "state", later, documents=self.index)
        restored.copy_restored(client, "shop", "restored", first, later)
        restored.derive(app, client, "anew", "state-3", first, documents=self.right)
        self.later = later

    def run(self, *arguments):
        return self.folder.run(*arguments, *self.options, "--table", "main=restored")

    def documents(self, index):
        return {(name, each.id): each.body for name in ("orders", "lines") for each in index.documents(name)}

    def check(self):
        """What follows from items is that of the restored items; later changes, and a comparison, agree."""
        of_items = {"of_changes": False}
        assert restored.rows(self.client, "restored", **of_items) == restored.rows(self.client, "anew", **of_items)
        assert self.documents(self.index) == self.documents(self.right)
        app = self.folder.load()
        for table, state, index in (("restored", "state-2", self.index), ("anew", "state-3", self.right)):
            restored.derive(app, self.client, table, state, self.later, documents=index)
        assert restored.rows(self.client, "restored", **of_items) == restored.rows(self.client, "anew", **of_items)
        assert self.documents(self.index) == self.documents(self.right)
        ran = self.run("verify", "--full", "--tolerance", "0")
        assert ran.code == 0, ran.out + ran.err


@pytest.fixture
def shop(folder, dynamodb_endpoint, dynamodb, access_key, monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", access_key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_DEFAULT_REGION", dynamodb.meta.region_name)
    options = ("--engine", "dynamodb", "--endpoint-url", dynamodb_endpoint)
    made = Restored(dynamodb, folder, options)
    monkeypatch.setattr("streamfold.derivations.search.opensearch.open_search", lambda *_: made.index)
    for name, value in (("STATE_TABLE", "state-2"), ("TABLE_MAIN", "restored"), ("SEARCH", URL)):
        monkeypatch.setenv(f"STREAMFOLD_{name}", value)
    return made


def test_a_restored_table_has_the_rows_and_documents_of_its_items(shop):
    history = {
        key: row
        for key, row in restored.rows(shop.client, "restored").items()
        if key[0].startswith(("AUDIT", "CHANGES"))
    }
    ran = shop.run("restore", "--yes")
    assert ran.code == 0, ran.out + ran.err
    assert history.items() <= restored.rows(shop.client, "restored").items()
    shop.check()


@pytest.mark.parametrize("calls", [0, 1, 2, 4, 8])
def test_a_restore_that_is_killed_goes_on(shop, calls, monkeypatch):
    transact, made = DynamoEngine.transact, []

    def dies(engine, writes, expires_at):
        made.append(writes)
        if len(made) > calls:
            raise KeyboardInterrupt
        return transact(engine, writes, expires_at)

    with monkeypatch.context() as dying:
        dying.setattr(DynamoEngine, "transact", dies)
        assert shop.run("restore", "--yes").code != 0
    ran = shop.run("restore", "--yes")
    assert ran.code == 0, ran.out + ran.err
    shop.check()
