"""Documents whose versions are kept by number: drawn histories of them, and the rows that they have to lead to."""

from hypothesis import strategies as st

from streamfold import App, Key, Router
from streamfold.records.values import decode
from tests.helpers.histories import EXPIRED
from tests.helpers.model import stored
from tests.helpers.records import VERSION_PREFIX

DOCUMENT = Key("DOC#{document_id}", "METADATA")
VERSION = Key("DOC#{document_id}", "v{revision:04d}")
LATEST = Key("DOC#{document_id}", "latest")


def app_of(*sources, **options):
    router = Router()
    declared = {"versions": VERSION, "latest": LATEST, "name": "history", **options}
    router.audit(*(sources or [DOCUMENT]), **declared)
    return App("documents", routers=[router])


ITEMS = st.fixed_dictionaries(
    {"revision": st.sampled_from([1, 2, 3]), "title": st.sampled_from("ab")}, optional={"token": st.just("secret")}
)
NAMES = st.sampled_from([("DOC#1", "METADATA"), ("DOC#2", "METADATA")])
HISTORIES = st.lists(st.tuples(NAMES, st.one_of(ITEMS, ITEMS, ITEMS, st.sampled_from([None, EXPIRED]))), max_size=25)
REDACTING = app_of(redact=["token"])


def expected(records):
    """The rows of versions and of the latest, told from the records in their order and nothing else."""
    rows = {}
    for each in records:
        body = each["dynamodb"]
        partition, new = body["Keys"]["PK"]["S"], decode({"M": body.get("NewImage", {})})
        rows.pop(("main", partition, "latest"), None)
        if new:
            number = f"v{int(new['revision']):04d}"
            row = {
                "event": each["eventName"],
                "at": "2026-03-01T09:00:00.000000Z",
                "version": f"{VERSION_PREFIX}{int(body['SequenceNumber']):040d}",
                "image": {name: value for name, value in new.items() if name != "token"},
            }
            rows["main", partition, number] = row | ({"redacted": ["token"]} if "token" in new else {})
            key = {"PK": partition, "SK": number}
            rows["main", partition, "latest"] = {"revision": new["revision"], "at": row["at"], "key": key}
    return rows


def numbered(app, engine):
    return {key: row for key, row in stored(app, engine).items() if not key[1].startswith("AUDIT#")}
