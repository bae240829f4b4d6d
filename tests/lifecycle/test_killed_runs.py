"""A run whose process is killed twenty times: rows are equal, nothing is written twice, and little is read again."""

import pytest

from tests.bench.killed import KILLS, Store

MIB_MAX = 60
READ_AGAIN_MAX = 0.005


def killed(items, page):
    found = Store(items, page).run()
    print(found)
    assert (found.kills, found.equal, found.twice) == (KILLS, True, 0)
    assert found.more <= KILLS * page
    assert found.mib <= MIB_MAX
    return found


@pytest.mark.ci
def test_a_run_over_some_thousand_items_goes_on_after_each_kill():
    killed(10_000, 100)


@pytest.mark.nightly
def test_a_run_over_a_million_items_reads_few_of_them_again():
    found = killed(1_000_000, 200)
    assert found.more <= READ_AGAIN_MAX * found.items
