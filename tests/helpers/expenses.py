"""Expenses and the totals of their groups: the application that tests of costs, commits and repairs begin with."""

from streamfold import Count, Key, Row, Sum

EXPENSE = Key("EXPENSE#{expense_id}", "METADATA")
GROUP = Key("GROUP#{group}", "TOTAL")
CARD = Key("CARD#{expense_id}", "CARD")


def group_total(item):
    """A handler for views of ``EXPENSE`` into ``GROUP``; it raises for the group "broken"."""
    if item["group"] == "broken":
        raise LookupError("no group")
    if item["group"]:
        yield Row(group=item["group"], total=Sum(item["amount"]), expenses=Count())
