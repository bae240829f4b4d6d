"""The pytest plugin, in a pytest of its own."""

import subprocess
import sys

import pytest

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


SHOP = """
from streamfold import App, Count, Key, Router, Row, Sum

ITEM = Key("ITEM#{item_id}", "META")
TOTAL = Key("TOTAL#{day}", "TOTAL")
router = Router()


@router.view(ITEM, into=TOTAL)
def totals(item):
    return Row(day=item["day"], amount=Sum(item["amount"]), items=Count())


app = App("mine", routers=[router])
"""
PROOF = """
from mine import ITEM, app

def test_totals(prove):
    prove(app, {ITEM: {"day": "a", "amount": 3}}, histories=40, processes=0)
"""
UNGUARDED = """
from streamfold.engines import local_store
from streamfold.writes.guarded import LedgerWrite

real = local_store.local_write


def unguarded(write, table):
    local = real(write, table)
    return local._replace(holds=lambda *given: True) if type(write) is LedgerWrite else local


local_store.local_write = unguarded
"""


@pytest.fixture
def project(tmp_path):
    (tmp_path / "mine.py").write_text(SHOP)
    (tmp_path / "tests").mkdir()
    (tmp_path / "pyproject.toml").write_text(
        '[tool.pytest.ini_options]\npythonpath = ["."]\ntestpaths = ["tests"]\nstreamfold_app = "mine:app"\n'
    )
    return tmp_path


def run_in(project, *options):
    command = [sys.executable, "-m", "pytest", "-v", "-p", "streamfold.testing.plugin", "-p", "no:cacheprovider"]
    variables = environment(PYTHONPATH=str(ROOT / "framework"), PYTEST_DISABLE_PLUGIN_AUTOLOAD="1")
    done = subprocess.run([*command, *options], cwd=project, env=variables, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def test_the_fixture_twin_is_of_the_projects_application(project):
    (project / "tests/test_twin.py").write_text(
        "from mine import ITEM, TOTAL\n\n"
        "def test_twin(twin):\n"
        "    twin.put(ITEM, item_id='1', day='a', amount=3)\n"
        "    assert twin.row(TOTAL, day='a')['amount'] == 3\n\n"
        "def test_another(twin):\n"
        "    assert twin.rows(TOTAL) == []\n"
    )
    code, out = run_in(project)
    assert (code, "2 passed" in out) == (0, True), out


def test_without_an_application_the_fixture_twin_says_how_to_name_it(project):
    (project / "tests/test_twin.py").write_text("def test_twin(twin):\n    pass\n")
    code, out = run_in(project, "-o", "streamfold_app=other:app")
    assert code == 1
    assert "found no application 'other:app': No module named 'other'" in out


def test_a_run_that_diverges_is_saved_and_replayed_first(project):
    """A guard that never refuses makes every delivery count: the proof diverges until the guard is back."""
    (project / "tests/test_a.py").write_text(PROOF)
    (project / "tests/conftest.py").write_text(UNGUARDED)
    code, out = run_in(project)
    assert code == 1
    assert "Saved as tests/regressions/test_totals_" in out
    (saved,) = (project / "tests/regressions").glob("test_totals_*.py")
    code, out = run_in(project)
    lines = [line for line in out.splitlines() if "::test_" in line]
    assert lines[0].startswith(f"tests/regressions/{saved.name}::test_history_that_diverged FAILED"), out
    assert "check_scenario(app, names" in out, "prove replays the saved run before it draws new ones"
    assert len(list((project / "tests/regressions").glob("*.py"))) == 1
    (project / "tests/conftest.py").unlink()
    code, out = run_in(project)
    assert (code, "2 passed" in out) == (0, True), out
