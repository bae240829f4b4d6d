"""Documents with lists of labels, some of which are not there: labels are made, renamed, removed and made again."""

from tests.workload import change, key, transact
from tests.workload.documents import Shelf

STEPS = 320
LABELS = ("l1", "l2", "l3", "l4", "l5", "l6")
NAMES = ("tax", "urgent", "board", "draft", "personal")


class Labels(Shelf):
    """A shelf whose documents have labels."""

    def __init__(self, table, seed):
        super().__init__(table, seed)
        self.labels = set()

    def some_labels(self):
        """In any order, now and then one of them twice."""
        return self.random.choices(LABELS, k=self.random.choice((0, 1, 2, 2, 3, 4)))

    def new_document(self):
        """Now and then without the attribute for labels."""
        return super().new_document() | ({"labels": self.some_labels()} if self.random.random() < 0.9 else {})

    def amend(self, remove=(), **values):
        if self.documents:
            self.table.update_item(**change(self.place(self.any_document()), remove, **values))

    def label(self):
        self.amend(labels=self.some_labels())

    def label_by_set(self):
        """Another writer keeps the labels as a set."""
        self.amend(labels=set(self.random.sample(LABELS, k=2)))

    def take_labels_away(self):
        self.amend(["labels"])

    def label_key(self, label):
        return key(f"LABEL#{label}", "METADATA")

    def make_label(self):
        """Two labels may have one name."""
        if missing := sorted(set(LABELS) - self.labels):
            label = self.random.choice(missing)
            self.labels.add(label)
            item = {"name": self.random.choice(NAMES), "color": "red", "at": self.clock.advance(30)}
            self.table.put_item(Item={**self.label_key(label), **item})

    def amend_label(self, **values):
        if self.labels:
            self.table.update_item(**change(self.label_key(self.random.choice(sorted(self.labels))), **values))

    def rename_label(self):
        self.amend_label(name=self.random.choice(NAMES))

    def paint_label(self):
        """A change that no lookup reads."""
        self.amend_label(color=self.random.choice(("red", "green", "blue")))

    def remove_label(self):
        """A label is removed alone: documents go on to refer to it."""
        if len(self.labels) > 1:
            label = self.random.choice(sorted(self.labels))
            self.labels.remove(label)
            self.table.delete_item(Key=self.label_key(label))

    def rename_and_label(self):
        """A label and a document that gets it change in one transaction."""
        if self.documents and self.labels:
            label = self.random.choice(sorted(self.labels))
            renamed = change(self.label_key(label), name=self.random.choice(NAMES))
            labelled = change(self.place(self.any_document()), labels=[label, self.random.choice(LABELS)])
            transact(self.table, ("Update", labelled), ("Update", renamed))


STEP_WEIGHTS = {
    Labels.write: 12,
    Labels.edit: 8,
    Labels.move: 2,
    Labels.remove: 4,
    Labels.label: 12,
    Labels.label_by_set: 3,
    Labels.take_labels_away: 2,
    Labels.make_label: 8,
    Labels.rename_label: 8,
    Labels.paint_label: 2,
    Labels.remove_label: 4,
    Labels.rename_and_label: 4,
}


def run(table, seed):
    """Writes a few documents before there are labels, and then takes as many steps as ``STEPS`` says."""
    shelf = Labels(table, seed)
    for _ in range(4):
        shelf.write()
    shelf.take_steps(STEP_WEIGHTS, STEPS)
