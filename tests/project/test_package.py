"""The package: what the wheel holds, what it is to import, and which names are public."""

import re
import subprocess
import sys
import zipfile
from email.parser import Parser

import pytest

import streamfold
import streamfold.engines
import streamfold.errors
from streamfold import Added, Ordered
from streamfold.cli import COMMANDS, docs
from streamfold.routes.aggregates import Aggregate
from tests.helpers import everything
from tests.helpers.aggregates import SHIPPED
from tests.helpers.commands import ROOT, environment

DOCS = [page for page in ROOT.glob("docs/**/*.md") if "decisions" not in page.parts]
HEAVY = ("boto3", "botocore", "click", "rich", "aws_lambda_powertools")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True)
    return zipfile.ZipFile(next(folder.glob("*.whl")))


def run(*arguments, **variables):
    """What Python prints for these arguments."""
    command = [sys.executable, *arguments]
    done = subprocess.run(command, cwd=ROOT, env=environment(**variables), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_wheel_holds_the_package_and_nothing_else(wheel):
    tops = {name.split("/")[0] for name in wheel.namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"streamfold"}


def test_wheel_says_that_it_is_typed(wheel):
    assert "streamfold/py.typed" in wheel.namelist()


def test_wheel_holds_every_module(wheel):
    modules = {str(path.relative_to(ROOT / "framework")) for path in ROOT.glob("framework/**/*.py")}
    assert modules == {name for name in wheel.namelist() if name.endswith(".py")}


def test_wheel_holds_the_pages_that_messages_name(wheel):
    pages = {f"streamfold/docs/{page.relative_to(ROOT / 'docs').as_posix()}" for page in DOCS}
    assert pages == {name for name in wheel.namelist() if name.endswith(".md")}


def test_a_wheel_prints_its_pages(wheel, tmp_path):
    wheel.extractall(tmp_path)
    printed = run("-m", "streamfold", "docs", "times", PYTHONPATH=str(tmp_path))
    assert printed == (ROOT / "docs/times.md").read_text("utf-8")
    assert run("-m", "streamfold", "docs", "times", "--path", PYTHONPATH=str(tmp_path)).startswith(str(tmp_path))


@pytest.fixture(scope="module")
def metadata(wheel):
    (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    return Parser().parsestr(wheel.read(name).decode())


def test_the_package_page_begins_with_pip_install(metadata):
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert metadata.get_payload().startswith("# streamfold\n\n```sh\npip install streamfold\n")


def test_the_package_page_has_absolute_links_alone(metadata):
    links = re.findall(r"\]\(([^)]+)\)", metadata.get_payload())
    assert len(links) >= 5
    assert [link for link in links if not link.startswith("https://")] == []


def test_the_package_page_names_pages_extras_and_commands_that_exist(metadata):
    page = metadata.get_payload()
    assert {*re.findall(r"streamfold docs (\S+)", page)} - {"#", *docs.pages()} == set()
    assert {*re.findall(r"^\| `(\w+)` \| ", page, re.MULTILINE)} == {*metadata.get_all("Provides-Extra")}
    blocks = re.findall(r"^```sh\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert {*re.findall(r"^streamfold (\w+)", "".join(blocks), re.MULTILINE)} == {"docs", "new"} <= {*COMMANDS}


def test_the_example_of_the_package_page_holds(metadata):
    (text,) = re.findall(r"```python\n(.*?)```", metadata.get_payload(), re.DOTALL)
    names = {"__name__": "page"}
    exec(compile(text, "page", "exec"), names)
    names["test_a_rating_follows_its_reviews"]()


def test_classifiers_name_the_pythons_that_ci_runs(metadata):
    promised = {each.rpartition(" ")[2] for each in metadata.get_all("Classifier") if re.search(r":: 3\.\d+$", each)}
    script = (ROOT / ".ci/run").read_text("utf-8")
    assert promised == {"3.11", "3.12", "3.13"}
    assert "pyproject.toml" in re.search(r"^pythons\(\) .*?^}", script, re.MULTILINE | re.DOTALL)[0]
    assert re.search(r"^quick\(\) .*?< <\(pythons\)", script, re.MULTILINE | re.DOTALL)


def test_wheel_runs_as_a_module_and_tells_its_version(wheel, tmp_path):
    wheel.extractall(tmp_path)
    assert run("-m", "streamfold", "--version", PYTHONPATH=str(tmp_path)).startswith("streamfold, version 0.")


def test_public_names_are_those_of_the_design():
    declared, given, yielded = (
        "App Router Key Lookup Every Newest Now Table AUDIT",
        "Change Item Part Parts Timer TypedChange Version",
        "Row Put Add Delete Document Added Ordered",
    )
    days = "local_day local_week local_month local_day_bounds"
    names = f"{declared} {given} {yielded} divide rounded {days} Unprocessable StreamfoldError Failure"
    assert sorted({*names.split(), *(each.__name__ for each in SHIPPED)}) == sorted(streamfold.__all__)


def test_every_aggregate_is_entered_where_tests_and_readers_look_for_it():
    public = {each for each in map(vars(streamfold).get, streamfold.__all__) if isinstance(each, type)}
    shipped = {each for each in public if issubclass(each, Aggregate)} - {Added, Ordered}
    table = (ROOT / "docs" / "aggregates.md").read_text("utf-8").partition("## The aggregates")[2].partition("## ")[0]
    places = {
        "tests/helpers/aggregates.py (ADDED, ORDERED or UNMERGED)": {each.__name__ for each in SHIPPED},
        "a handler of tests/helpers/everything.py": {*vars(everything)},
        "the table in docs/aggregates.md": set(re.findall(r"`(\w+)\(", table)),
    }
    missing = [
        (each.__name__, where) for where, names in places.items() for each in shipped if each.__name__ not in names
    ]
    assert not missing, f"enter the aggregate there: {missing}"


def test_every_public_name_is_there_and_documented():
    for module in (streamfold, streamfold.engines, streamfold.errors):
        for name in module.__all__:
            assert getattr(module, name).__doc__, name
        with pytest.raises(AttributeError, match=f"module '{module.__name__}' has no attribute 'missing'"):
            _ = module.missing


def test_every_error_of_the_module_may_be_caught():
    errors = {name for name, each in vars(streamfold.errors).items() if isinstance(each, type) and name[0] != "_"}
    assert {name for name in errors if issubclass(getattr(streamfold.errors, name), Exception)} == {
        *streamfold.errors.__all__,
        "SwitchedOff",  # never leaves the framework: why a record is parked
    }


@pytest.mark.parametrize(
    ("program", "absent"),
    [
        ("import streamfold", "streamfold.batch.report"),
        ("import streamfold", "streamfold.routes.moments"),
        ("import streamfold.engines", "sqlite3"),
        ("from streamfold.engines import EmbeddedEngine, MemoryEngine", "boto3"),
        ("import handlers", "streamfold.batch.process"),
        ("import handlers", "streamfold.commit.plan"),
        ("import handlers", "streamfold.derivations.expected"),
        ("import handlers", "streamfold.derivations.feed.spreading"),
        ("import handlers", "streamfold.engines"),
        ("import handlers", "streamfold.jobs"),
        ("import handlers", "streamfold.ledger.contribution"),
        ("import handlers", "streamfold.runtime"),
        ("import handlers", "streamfold.writes.guarded"),
        ("import streamfold.lambda_entry.function", "difflib"),
        ("import streamfold.lambda_entry.function", "streamfold.lifecycle"),
        ("import streamfold.lambda_entry.function", "streamfold.replay"),
        ("import streamfold.lambda_entry.function", "sqlite3"),
    ],
)
def test_what_few_need_is_imported_when_it_is_asked_for(program, absent):
    brings = run("-c", f"import sys; {program}; print({absent!r} in sys.modules)").strip()
    assert brings == "False", f"{program} brings {absent}: import it in the method that needs it (decision 57)"


@pytest.mark.parametrize("module", ["streamfold", "handlers"])
def test_import_brings_no_client_no_terminal_and_no_powertools(module):
    program = f"import sys, {module}; print([name for name in {HEAVY!r} if name in sys.modules])"
    assert run("-c", program).strip() == "[]"
