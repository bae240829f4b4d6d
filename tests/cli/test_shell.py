"""Which options go together: the rules that commands declare beside their options."""

import pytest

from streamfold.cli import shell

ONE = "Say which: --a or --b."


@pytest.mark.parametrize(
    ("rule", "given", "error"),
    [
        (shell.exclusive("--a", "--b", "--c"), {"--a"}, None),
        (shell.exclusive("--a", "--b", "--c"), {"--c", "--a"}, "--a and --c do not go together: give one of them."),
        (shell.exclusive("--a", "--b", why="Expected {} or {}."), {"--a", "--b"}, "Expected --a or --b."),
        (shell.exactly_one("--a", "--b", why=ONE), set(), ONE),
        (shell.exactly_one("--a", "--b", why=ONE), {"--a", "--b"}, ONE),
        (shell.exactly_one("--a", "--b", why=ONE), {"--b"}, None),
        (shell.refuses("--a", "--b", "--c", why="{other} is not for --a."), {"--a", "--c"}, "--c is not for --a."),
        (shell.refuses("--a", "--b", why="{other} is not for --a."), {"--b"}, None),
        (shell.belongs("--a", "--b", "--c"), {"--a"}, "--a belongs to --b or --c."),
        (shell.belongs("--a", "--runner spark"), {"--a", "--runner spark"}, None),
    ],
)
def test_a_rule_gives_the_error_of_options_that_do_not_go_together(rule, given, error):
    assert rule.check(frozenset(given), {}) == error
