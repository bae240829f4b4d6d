"""What fails is made as short as leaving things out can make it."""

from streamfold.proofs.faults import Budget, shortened


def short(fails, units, script=(), runs=1000):
    return shortened(fails, units, dict.fromkeys(script, "fault"), Budget(runs))


def test_only_what_is_needed_is_left():
    units, script = short(lambda units, script: {3, 7} <= set(units) and 5 in script, range(20), range(10))
    assert (units, script) == ([3, 7], {5: "fault"})


def test_nothing_is_left_where_nothing_is_needed():
    assert short(lambda units, script: True, range(5), range(5)) == ([], {})


def test_all_is_left_where_all_is_needed():
    units, _ = short(lambda units, script: len(units) == 5, range(5))
    assert units == [0, 1, 2, 3, 4]


def test_runs_are_bounded():
    tried = []

    def fails(units, script):
        tried.append(units)
        return len(units) == 100

    assert short(fails, range(100), runs=10) == (list(range(100)), {})
    assert len(tried) == 10
