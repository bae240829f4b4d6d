"""Accounts: balances from entries that never change, and a check that the books balance.

The entries of a transfer add up to nothing. One that does not stands under ``UNBALANCED``
until its other side is there.
"""

from streamfold import Change, Count, Item, Key, Put, Router, Row, Sum

ENTRY = Key("ACCOUNT#{account_id}", "ENTRY#{transfer_id}")
BALANCE = Key("ACCOUNT#{account_id}", "BALANCE")
TRANSFER = Key("TRANSFER#{transfer_id}", "TOTAL")
UNBALANCED = Key("BOOKS#UNBALANCED", "TRANSFER#{transfer_id}")
AMENDED = Key("BOOKS#AMENDED", "ACCOUNT#{account_id}#{transfer_id}")
BOOKS = Key("BOOKS#ALL", "TOTAL")

router = Router()


@router.view(ENTRY, into=BALANCE)
def balance(entry: Item) -> Row:
    return Row(balance=Sum(entry["amount"]), entries=Count())


@router.view(ENTRY, into=TRANSFER)
def transfer_total(entry: Item) -> Row:
    return Row(total=Sum(entry["amount"]), entries=Count())


@router.index(TRANSFER, into=UNBALANCED)  # a chain: its source is the row that transfer_total keeps
def unbalanced_transfers(transfer: Item) -> Row | None:
    if transfer["total"] != 0:
        return Row(off_by=transfer["total"])
    return None


@router.view(ENTRY, into=BOOKS)
def books(entry: Item) -> Row:
    return Row(total=Sum(entry["amount"]), turnover=Sum(abs(entry["amount"])), entries=Count())


@router.on(ENTRY, events=["MODIFY", "REMOVE"], into=AMENDED)  # an entry stays as it was written; this one did not
def amended_entries(change: Change) -> Put:
    return Put(AMENDED, event=change.event, was=change.old["amount"], at=change.at)
