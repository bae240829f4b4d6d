"""Accounts: transfers between them, some written side by side, some with a mistake that a later entry puts right."""

from decimal import Decimal

from tests.workload import Workload, change, key, plain, transact

STEPS = 170
ACCOUNTS = ("cash", "rent", "wages", "sales", "anna", "bela", "chidi", "dara")


class Bank(Workload):
    """The books' own view of their table, so that every next step follows from the seed alone."""

    def __init__(self, table, seed):
        super().__init__(table, seed)
        self.number = 0
        self.entries = []
        self.open = []

    def entry(self, account, transfer, amount):
        self.entries.append((account, transfer))
        item = {**key(f"ACCOUNT#{account}", f"ENTRY#{transfer}"), "amount": amount, "at": self.clock.advance(90)}
        return item | {"text": self.random.choice(("rent", "invoice", "refund", "salary", "gift"))}

    def next_transfer(self):
        self.number += 1
        return f"T{self.number:05d}"

    def any_amount(self):
        return plain(Decimal(self.random.randint(1, 90_000)).scaleb(-2))

    def transfer(self):
        """Both sides in one transaction."""
        payer, payee = self.random.sample(ACCOUNTS, k=2)
        name, amount = self.next_transfer(), self.any_amount()
        sides = [self.entry(payer, name, -amount), self.entry(payee, name, amount)]
        transact(self.table, *(("Put", {"Item": side}) for side in sides))

    def split(self):
        """One payer, several payees, in a batch."""
        payer, *payees = self.random.sample(ACCOUNTS, k=self.random.randint(3, 5))
        name, amounts = self.next_transfer(), [self.any_amount() for _ in payees]
        with self.table.batch_writer() as batch:
            batch.put_item(Item=self.entry(payer, name, -sum(amounts)))
            for payee, amount in zip(payees, amounts, strict=True):
                batch.put_item(Item=self.entry(payee, name, amount))

    def forget_a_side(self):
        payer, payee = self.random.sample(ACCOUNTS, k=2)
        name, amount = self.next_transfer(), self.any_amount()
        self.table.put_item(Item=self.entry(payer, name, -amount))
        self.open.append((payee, name, amount))

    def put_right(self):
        if self.open:
            self.table.put_item(Item=self.entry(*self.open.pop(self.random.randrange(len(self.open)))))

    def tamper(self):
        """Amends or removes an entry, which nobody should."""
        account, transfer = self.random.choice(self.entries)
        place = key(f"ACCOUNT#{account}", f"ENTRY#{transfer}")
        if self.random.random() < 0.5:
            self.table.update_item(**change(place, amount=self.any_amount()))
        else:
            self.entries.remove((account, transfer))
            self.table.delete_item(Key=place)


STEP_WEIGHTS = {Bank.transfer: 24, Bank.split: 8, Bank.forget_a_side: 6, Bank.put_right: 5, Bank.tamper: 3}


def run(table, seed):
    """Takes as many steps as ``STEPS`` says, each step a transfer or what went wrong with one."""
    bank = Bank(table, seed)
    bank.transfer()
    bank.take_steps(STEP_WEIGHTS, STEPS)
