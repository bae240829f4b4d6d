"""The pytest plugin, in a pytest of its own."""

import subprocess
import sys

from tests.helpers.commands import ROOT, environment

TEST = """
from tests.helpers.everything import ORDER_ITEM, app_of

def test_totals(prove):
    prove(app_of("order_total"), {ORDER_ITEM: {"price": 1, "quantity": 2}}, histories=3)
"""


def run(tmp_path, *options):
    path = tmp_path / "test_totals.py"
    path.write_text(TEST)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "streamfold.testing.plugin", "-p", "no:cacheprovider"]
    variables = environment(PYTHONPATH=f"{ROOT / 'framework'}:{ROOT}", PYTEST_DISABLE_PLUGIN_AUTOLOAD="1")
    done = subprocess.run(
        [*command, *options, str(path)], cwd=tmp_path, env=variables, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_proof_is_shown_at_the_end_of_the_run(tmp_path):
    out = run(tmp_path)
    assert "test_totals.py::test_totals: 3 histories of " in out
    assert "\n  left out: other processes, " in out


def test_options_of_the_command_line_win(tmp_path):
    out = run(tmp_path, "--streamfold-histories", "5", "--streamfold-seed", "9")
    assert "test_totals: 5 histories of " in out
    assert "(seed 9, " in out
