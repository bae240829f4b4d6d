"""Documents: written, edited under a check of their revision, moved between folders, shared, deleted, written again."""

from botocore.exceptions import ClientError

from tests.workload import Workload, change, key

STEPS = 260
FOLDERS = ("inbox", "plans", "minutes", "archive")
WORDS = ("agenda", "budget", "draft", "notes", "review", "summary", "scope", "risk")


class Shelf(Workload):
    """The writers' own view of their table, so that every next step follows from the seed alone."""

    def __init__(self, table, seed):
        super().__init__(table, seed)
        self.documents = {}
        self.removed = []
        self.count = 0

    def place(self, name):
        return key(f"DOC#{name}", "METADATA")

    def text(self):
        return " ".join(self.random.choices(WORDS, k=self.random.randint(3, 12)))

    def any_document(self):
        return self.random.choice(sorted(self.documents))

    def write(self):
        """A new document, now and then under the name of a removed one."""
        again = self.removed and self.random.random() < 0.3
        name = self.removed.pop() if again else f"d{self.count:03d}"
        self.count += not again
        self.documents[name] = 1
        content = {"title": self.random.choice(WORDS), "text": self.text(), "folder": self.random.choice(FOLDERS)}
        item = {**self.place(name), **content, "revision": 1, "edited": self.clock.advance(300)}
        self.table.put_item(Item=item)

    def edit(self, *, stale=False):
        """Raises the revision on the condition that it is the one that was read."""
        if not self.documents:
            return
        name = self.any_document()
        read = self.documents[name] - stale
        update = change(self.place(name), text=self.text(), revision=read + 1, edited=self.clock.advance(120))
        update["ExpressionAttributeValues"][":read"] = read
        try:
            self.table.update_item(**update, ConditionExpression="#revision = :read")
            self.documents[name] = read + 1
        except ClientError as error:
            if not (stale and error.response["Error"]["Code"] == "ConditionalCheckFailedException"):
                raise

    def edit_too_late(self):
        """Two writers read one revision: the second is refused, and leaves no record."""
        self.edit(stale=True)

    def move(self):
        if self.documents:
            self.table.update_item(**change(self.place(self.any_document()), folder=self.random.choice(FOLDERS)))

    def share(self):
        if self.documents:
            token = f"{self.random.getrandbits(64):016x}"
            self.table.update_item(**change(self.place(self.any_document()), share_token=token))

    def remove(self):
        if self.documents:
            name = self.any_document()
            del self.documents[name]
            self.removed.append(name)
            self.table.delete_item(Key=self.place(name))


STEP_WEIGHTS = {
    Shelf.write: 10,
    Shelf.edit: 24,
    Shelf.edit_too_late: 3,
    Shelf.move: 6,
    Shelf.share: 4,
    Shelf.remove: 4,
}


def run(table, seed):
    """Takes as many steps as ``STEPS`` says."""
    Shelf(table, seed).take_steps(STEP_WEIGHTS, STEPS)
