"""Local stores that decide otherwise about writes, or make another item of them."""

from contextlib import contextmanager
from unittest.mock import patch

from streamfold.engines import local_store


@contextmanager
def on_writes(*kinds, guard=None, made=None):
    """Exchanges the guard of writes of these kinds, and the item after them, for what is made of them here.

    ``guard`` makes the function of a write and the item, ``made`` that of a write, the item, its table and the time to
    live. Both are given the ones that there are, which take any write of the kind. An item that is not there is empty.
    """
    real = local_store.local_write

    def changed(write, table):
        local = real(write, table)
        if type(write) not in kinds:
            return local

        def holds(other, item):
            return real(other, table).holds(other, item)

        def after(other, *found):
            return real(other, table).after(other, *found)

        return local._replace(
            holds=guard(holds) if guard is not None else local.holds,
            after=made(after) if made is not None else local.after,
        )

    with patch.object(local_store, "local_write", changed):
        yield
