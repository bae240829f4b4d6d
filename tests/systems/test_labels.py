"""Labels of documents: their names in the order of each document's list, and the documents of each name."""

from collections import Counter, defaultdict
from itertools import pairwise
from random import Random

import pytest

from handlers.documents import DOCUMENT, LABELLED, app, documents_by_label
from streamfold import Count, Row, Sum
from tests.systems import Folded, delivered_again, in_other_order, items_after, recorded

RECORDS, _ = recorded("documents/labels")
SIZES = (1, 7, 100, len(RECORDS))
MOMENTS = 6
"""Numbers of records behind which rows are compared."""


class Cabinet:
    """What a person would write down who holds all documents and labels: no code of the handlers."""

    def __init__(self, records):
        self.labels, self.documents = {}, {}
        for (partition, _), item in items_after(records).items():
            kind, _, name = partition.partition("#")
            (self.labels if kind == "LABEL" else self.documents)[name] = item

    def names(self, document):
        """The names of the labels that exist, in the order of a list, and by id of a set."""
        given = document.get("labels", [])
        ids = given if isinstance(given, list) else sorted(given)
        return [self.labels[each]["name"] for each in ids if each in self.labels]

    def shown(self):
        """What documents show that have a label."""
        return {name: names for name, item in self.documents.items() if (names := self.names(item))}

    def labelled(self):
        """Of each name the number of documents, and of their characters."""
        found = defaultdict(Counter)
        for document in self.documents.values():
            for name in set(self.names(document)):
                found[name].update(documents=1, characters=len(document["text"]))
        return {(name,): dict(counts) for name, counts in found.items()}

    def rows(self):
        return self.shown(), self.labelled()


def rows(folded):
    """The same of a state."""
    documents = folded.rows(DOCUMENT).items()
    shown = {name: item["label_names"] for (name,), item in documents if "label_names" in item}
    return shown, folded.rows(LABELLED)


@pytest.mark.parametrize("size", SIZES)
def test_documents_show_the_names_of_their_labels_for_every_size_of_batches(size):
    assert rows(Folded(app, RECORDS, size)) == Cabinet(RECORDS).rows()


@pytest.mark.parametrize("seed", range(MOMENTS))
def test_documents_show_the_names_of_their_labels_while_records_come(seed):
    records = RECORDS[: Random(seed).randrange(len(RECORDS))]
    assert rows(Folded(app, records, 40)) == Cabinet(records).rows()


@pytest.mark.parametrize("seed", range(2))
def test_labels_and_documents_may_come_in_any_order(seed):
    assert rows(Folded(app, in_other_order(RECORDS, Random(seed)), 7 + 30 * seed)) == Cabinet(RECORDS).rows()


def test_records_that_are_delivered_again_change_nothing():
    folded = Folded(app, delivered_again(RECORDS, Random(1)), size=11)
    assert rows(folded) == Cabinet(RECORDS).rows()
    folded.add(RECORDS)
    assert rows(folded) == Cabinet(RECORDS).rows()


def test_the_recording_has_what_makes_lists_hard():
    seen = [Cabinet(RECORDS[:count]) for count in range(len(RECORDS) + 1)]
    given = [item["labels"] for each in seen for item in each.documents.values() if "labels" in item]
    assert any(isinstance(each, set) for each in given)
    assert any(each == [] for each in given)
    assert any(isinstance(each, list) and len(set(each)) < len(each) for each in given), "one label twice"
    assert any("labels" not in item for each in seen for item in each.documents.values())
    names = [Counter(label["name"] for label in each.labels.values()) for each in seen]
    assert any(max(each.values(), default=0) > 1 for each in names), "two labels of one name"
    renamed = gone = 0
    for one, other in pairwise(seen):
        both = one.labels.keys() & other.labels.keys()
        renamed += sum(one.labels[label]["name"] != other.labels[label]["name"] for label in both)
        gone += sum(one.shown() != other.shown() for _ in one.labels.keys() - other.labels.keys())
    assert renamed > 10
    assert gone > 5, "labels that are removed while documents have them"


def test_a_document_with_one_label_twice_counts_once():
    labels = ({"name": "tax"}, {"name": "tax"})
    row = Row(name="tax", documents=Count(), characters=Sum(2))
    assert [*documents_by_label({"text": "ab"}, labels)] == [row]
