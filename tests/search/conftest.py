"""OpenSearch servers and indices for the tests, and sinks over all places where documents can be."""

from uuid import uuid4

import pytest

from streamfold.derivations.search.local import LocalIndex
from streamfold.derivations.search.opensearch import open_search
from streamfold.derivations.search.sink import VISIBLE
from streamfold.engines import EmbeddedEngine, MemoryEngine
from streamfold.settings import Settings
from tests.helpers.required import lacking
from tests.on_local.conftest import (  # noqa: F401 - fixtures
    access_key,
    dynamodb,
    dynamodb_control,
    dynamodb_endpoint,
    dynamodbstreams,
)
from tests.search.servers import Server
from tests.search.stub import serving
from tests.tools.opensearch import VERSIONS, is_there

SERVERS = [pytest.param(version, marks=[pytest.mark.engine, pytest.mark.opensearch]) for version in VERSIONS]
"""Parameters of what runs on each server."""
MAPPING = {
    "dynamic": False,
    "properties": {
        "_sf_gone": {"type": "boolean"},
        "_sf_at": {"type": "date"},
        "_sf_h": {"type": "keyword"},
        "stock": {"type": "long"},
    },
}


class Place:
    """A sink with an index of a test, and what the test does to it from outside."""

    def __init__(self, sink, server=None):
        self.sink = sink
        self.server = server
        self.index = f"test-{uuid4().hex[:12]}"

    @property
    def real(self):
        return f"{self.index}~000001"

    def create(self, *, alias=True, filtered=True, shards=1, **settings):
        """Makes the index and its alias; on a server only."""
        if self.server is None:
            return self
        body = {
            "settings": {"number_of_shards": shards, "number_of_replicas": 0, **settings},
            "mappings": MAPPING,
            "aliases": {self.index: {"filter": VISIBLE} if filtered else {}} if alias else {},
        }
        self.server.ask("PUT", f"/{self.real}", body)
        return self

    def refresh(self):
        if self.server is not None:
            self.server.ask("POST", f"/{self.index}*/_refresh")

    def set(self, **settings):
        self.server.ask(
            "PUT", f"/{self.real}/_settings", {name.replace("__", "."): settings[name] for name in settings}
        )

    def remove(self):
        if self.server is not None:
            self.server.ask("DELETE", f"/{self.index}*")


@pytest.fixture(scope="session")
def servers():
    """Gives the server of a version, started when it is first asked for."""
    started = {}

    def server(version):
        if version not in started:
            if not is_there(version):
                lacking(f"no OpenSearch {version}, or no Java for it: python -m tests.tools.opensearch fetch")
            started[version] = Server(version)
            started[version].start()
        return started[version]

    yield server
    for each in started.values():
        each.remove()


@pytest.fixture
def stub():
    with serving() as running:
        yield running


@pytest.fixture
def open_sink():
    """Opens sinks on a server, and closes them."""
    opened = []

    def opens(server, **settings):
        opened.append(open_search(Settings(search=server.url, **settings)))
        return opened[-1]

    yield opens
    for sink in opened:
        sink.close()


@pytest.fixture(params=SERVERS)
def server(request, servers):
    """Each server."""
    return servers(request.param)


@pytest.fixture
def remote(server, open_sink):
    """Each server, with a sink and the name of an index that is not there yet."""
    place = Place(open_sink(server), server)
    yield place
    place.remove()


@pytest.fixture(params=["memory", "file", *SERVERS])
def place(request, tmp_path, servers, open_sink):
    """Every place where documents can be, with an index."""
    if request.param == "memory":
        yield Place(LocalIndex(MemoryEngine([])))
        return
    if request.param == "file":
        engine = EmbeddedEngine([], tmp_path / "state.db")
        yield Place(LocalIndex(engine))
        engine.close()
        return
    server = servers(request.param)
    place = Place(open_sink(server), server).create()
    yield place
    place.remove()
