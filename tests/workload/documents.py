"""Documents: written, edited under a check of their revision, moved between folders, shared, deleted, written again.

Folders are made, often inside of others that are not there yet, are renamed, moved, removed alone and made again.
"""

from botocore.exceptions import ClientError

from tests.workload import Workload, change, key, transact

STEPS = 330
FOLDERS = ("inbox", "plans", "minutes", "archive")
TREE = (*FOLDERS, "drafts", "letters", "taxes")
WORDS = ("agenda", "budget", "draft", "notes", "review", "summary", "scope", "risk")


class Shelf(Workload):
    """The writers' own view of their table, so that every next step follows from the seed alone."""

    def __init__(self, table, seed):
        super().__init__(table, seed)
        self.documents = {}
        self.removed = []
        self.count = 0
        self.folders = set()

    def place(self, name):
        return key(f"DOC#{name}", "METADATA")

    def text(self):
        return " ".join(self.random.choices(WORDS, k=self.random.randint(3, 12)))

    def any_document(self):
        return self.random.choice(sorted(self.documents))

    def new_document(self):
        """Now and then under the name of a removed one."""
        again = self.removed and self.random.random() < 0.3
        name = self.removed.pop() if again else f"d{self.count:03d}"
        self.count += not again
        self.documents[name] = 1
        content = {"title": self.random.choice(WORDS), "text": self.text(), "folder": self.random.choice(FOLDERS)}
        return {**self.place(name), **content}

    def write(self):
        self.table.put_item(Item={**self.new_document(), "revision": 1, "edited": self.clock.advance(300)})

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

    # --- folders

    def folder_key(self, folder):
        return key(f"FOLDER#{folder}", "METADATA")

    def name(self, folder):
        return folder.title() + self.random.choice(("", " (old)", " 2026"))

    def make_folder(self):
        """Makes a folder inside of another one, which may be missing, or of none."""
        if missing := sorted(set(TREE) - self.folders):
            folder = self.random.choice(missing)
            self.folders.add(folder)
            inside = {"parent": self.random.choice(TREE)} if self.random.random() < 0.8 else {}
            self.table.put_item(Item={**self.folder_key(folder), "name": self.name(folder), **inside})

    def any_folder(self):
        return self.random.choice(sorted(self.folders)) if self.folders else None

    def rename_folder(self):
        if folder := self.any_folder():
            self.table.update_item(**change(self.folder_key(folder), name=self.name(folder)))

    def move_folder(self):
        """Moves a folder, be it into itself or into one of its own, which nobody prevents."""
        if folder := self.any_folder():
            self.table.update_item(**change(self.folder_key(folder), parent=self.random.choice(TREE)))

    def take_out(self):
        if folder := self.any_folder():
            self.table.update_item(**change(self.folder_key(folder), ["parent"]))

    def move_and_rename(self):
        """A folder and the one that it moves into change in one transaction."""
        if len(self.folders) > 1:
            folder, parent = self.random.sample(sorted(self.folders), k=2)
            moved = change(self.folder_key(folder), parent=parent)
            renamed = change(self.folder_key(parent), name=self.name(parent))
            transact(self.table, ("Update", moved), ("Update", renamed))

    def remove_folder(self):
        """Removes a folder alone: what is inside stays."""
        if folder := self.any_folder():
            self.folders.remove(folder)
            self.table.delete_item(Key=self.folder_key(folder))


STEP_WEIGHTS = {
    Shelf.write: 10,
    Shelf.edit: 24,
    Shelf.edit_too_late: 3,
    Shelf.move: 6,
    Shelf.share: 4,
    Shelf.remove: 4,
    Shelf.make_folder: 9,
    Shelf.rename_folder: 3,
    Shelf.move_folder: 4,
    Shelf.take_out: 1,
    Shelf.move_and_rename: 2,
    Shelf.remove_folder: 2,
}


def run(table, seed):
    """Takes as many steps as ``STEPS`` says, and moves a folder out of all others."""
    shelf = Shelf(table, seed)
    shelf.take_steps(STEP_WEIGHTS, STEPS)
    shelf.take_out()
