"""The documents' examples are run, and generated pages are what the code says today."""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import boto3
import pytest

from streamfold.derivations import KINDS
from tests.bench.__main__ import BENCHMARKS
from tests.bench.performance import TITLES, WORKLOADS, workload
from tests.helpers.tables import make_table
from tests.tools import cli_docs, reference_docs

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text("utf-8")
README_LINES_MAX = 150
HOW_LINES_MAX = 80
WAYS_IN = sorted(ROOT.glob(".github/*.md"))
"""Pages that the forge shows to who contributes or reports."""
TESTING = (ROOT / "docs/testing.md").read_text("utf-8")
FIRST_HANDLER = (ROOT / "docs/first-handler.md").read_text("utf-8")
BLOCK = re.compile(r"^```(\w+)([^\n]*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
FILE = re.compile(r"# ((?:(?:handlers|tests|my_shop)/)?\w+\.py)\n")


def blocks(language: str, mark: str = "", page: str = README) -> list[str]:
    return [text for found, rest, text in BLOCK.findall(page) if found == language and rest.strip() == mark]


def commands(page: str) -> list[str]:
    """The lines of the page's one block of commands that a test runs."""
    found = blocks("sh", "run", (ROOT / page).read_text("utf-8"))
    assert len(found) == 1, (
        f"{page} has {len(found)} blocks marked ```sh run: expected one, whose commands a test runs."
    )
    return found[0].splitlines()


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project of the page about a first handler, as a reader writes it, with the tests of docs/testing.md."""
    folder = tmp_path_factory.mktemp("project")
    write_files(folder, FIRST_HANDLER, TESTING)
    (folder / "events").mkdir()
    (folder / "events/reviews.json").write_text(blocks("json", "events/reviews.json", FIRST_HANDLER)[0], "utf-8")
    return folder


def write_files(folder: Path, *pages: str) -> None:
    """Writes the blocks of Python that begin with the name of a file."""
    for text in [text for page in pages for text in blocks("python", page=page)]:
        if named := FILE.match(text):
            place = folder / named[1]
            place.parent.mkdir(exist_ok=True)
            place.write_text(text, "utf-8")


def run(project: Path, *command: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "framework"), str(project)])}
    return subprocess.run(
        [sys.executable, "-m", *command], cwd=project, env=environment, capture_output=True, text=True, check=False
    )


def test_the_readme_opens_with_the_two_commands() -> None:
    assert README.index("make replay") < README.index("make test") < README.index("## What you write")


def test_the_readme_is_short() -> None:
    lines = len(README.splitlines())
    assert lines <= README_LINES_MAX, f"{lines} lines, {README_LINES_MAX} at most: the rest belongs to a page of docs/"


def test_the_commands_of_a_first_handler_run_and_show_what_the_page_says(project: Path) -> None:
    outputs = []
    for line in commands("docs/first-handler.md"):
        done = run(project, *line.split())
        assert done.returncode == 0, (
            f"docs/first-handler.md: `{line}` ended with {done.returncode}:\n{done.stdout}{done.stderr}"
        )
        outputs.append(done.stdout)
    assert '{"PK":{"S":"PRODUCT#7"},"SK":{"S":"RATING"},"reviews":{"N":"1"},"stars":{"N":"4"}}' in outputs[1]
    assert '{"PK":{"S":"PRODUCT#7"},"SK":{"S":"RATING"},"reviews":{"N":"1"},"stars":{"N":"4"}}' in FIRST_HANDLER


def test_the_readmes_application_passes_its_test(tmp_path: Path) -> None:
    write_files(tmp_path, README)
    done = run(tmp_path, "pytest", "-q", "-p", "no:cacheprovider", "tests/test_shop.py")
    assert "1 passed" in done.stdout, done.stdout + done.stderr


def test_the_tests_of_a_first_handler_pass(project: Path) -> None:
    done = run(project, "pytest", "-q", "-p", "no:cacheprovider", "tests/test_reviews.py")
    assert "2 passed" in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize("beside", [(), ("handlers",)], ids=["alone", "in this repository"])
def test_a_project_is_tried_on_moto(project: Path, tmp_path: Path, beside: tuple[str, ...]) -> None:
    shutil.copytree(project, tmp_path, dirs_exist_ok=True)
    for name in beside:
        shutil.copytree(ROOT / name, tmp_path / name, dirs_exist_ok=True)
    done = run(tmp_path, "pytest", "-q", "-p", "no:cacheprovider", "tests/test_on_moto.py")
    assert "2 passed" in done.stdout, done.stdout + done.stderr


def test_a_project_is_tried_on_a_local_state(project: Path) -> None:
    done = run(project, "pytest", "-q", "-p", "no:cacheprovider", "tests/test_local.py")
    assert "1 passed" in done.stdout, done.stdout + done.stderr
    rows, sources = [run(project, *line.split()) for line in commands("docs/testing.md")]
    assert "reviews=1  stars=4" in rows.stdout, rows.stderr
    assert "REVIEW#ada" in sources.stdout, sources.stderr


@pytest.fixture
def shop_table(aws: None) -> None:
    resource = boto3.resource("dynamodb")
    make_table(resource.meta.client, "shop", {"PK": "S", "SK": "S"})
    table = resource.Table("shop")
    for number in range(30):
        table.put_item(Item={"PK": "PRODUCT#7", "SK": f"REVIEW#{number:02d}", "stars": 4})
    table.put_item(Item={"PK": "PRODUCT#7", "SK": "RATING", "stars": 120, "reviews": 30, "_sf_n": 30})


@pytest.mark.usefixtures("shop_table")
def test_the_way_of_reading_rows_works(project: Path) -> None:
    (text,) = blocks("python", "read", (ROOT / "docs/reading.md").read_text("utf-8"))
    done = {}
    code = text.replace("from handlers.reviews import RATING, REVIEW\n", "")
    keys = (project / "handlers/reviews.py").read_text("utf-8").split("router = ")[0]
    exec(compile(keys + code, "docs/reading.md", "exec"), done)
    assert done["rating"]["reviews"] == 30
    assert len(done["customers"]) == 5
    assert done["present"] == [{"PK": "PRODUCT#7", "SK": "RATING", "stars": 120, "reviews": 30}]


RUN = (
    "docs/aggregates.md",
    "docs/attributes.md",
    "docs/collections.md",
    "docs/lookups.md",
    "docs/moments.md",
    "docs/audit.md",
    "docs/failures.md",
    "docs/hot-rows.md",
    *sorted(page.relative_to(ROOT).as_posix() for page in ROOT.glob("docs/how/*.md")),
    "docs/keys.md",
    "docs/numbers.md",
    "docs/operations.md",
    "docs/patterns.md",
    "docs/permissions.md",
    "docs/publish.md",
    "docs/search-operations.md",
    "docs/search.md",
    "docs/sources.md",
    "docs/template.md",
    "docs/tenants.md",
    "docs/testing.md",
    "docs/times.md",
    "docs/twins.md",
    "docs/typed-items.md",
    "docs/unique.md",
    "docs/wrong-rows.md",
)
"""Pages whose every example runs as it stands; functions named as tests are called."""
RUN_AS_ONE = ("docs/adding-a-kind.md", "docs/feeds.md", "docs/lifecycle.md")
"""Pages whose examples go on from those before them."""
EXAMPLES = [
    pytest.param(page, text, id=f"{page} {number}")
    for page in RUN
    for number, (found, _, text) in enumerate(BLOCK.findall((ROOT / page).read_text("utf-8")))
    if found == "python" and not FILE.match(text)
]


@pytest.mark.usefixtures("aws")
@pytest.mark.parametrize(("page", "text"), EXAMPLES)
def test_the_examples_of_a_page_run(page: str, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if "pydantic" in text:
        pytest.importorskip("pydantic", reason="pydantic decodes: it comes with the extra 'typed'")
    monkeypatch.setitem(sys.modules, "example", module := ModuleType("example"))  # dataclasses look up their module
    names = vars(module)
    exec(compile(text, page, "exec"), names)
    for name in [name for name in names if name.startswith("test_")]:
        names[name]()


@pytest.mark.usefixtures("aws")
@pytest.mark.parametrize("page", RUN_AS_ONE)
def test_the_examples_of_a_page_run_one_after_another(page: str) -> None:
    names: dict[str, Any] = {"__name__": "example"}
    for language, _, text in BLOCK.findall((ROOT / page).read_text("utf-8")):
        if language == "python":
            exec(compile(text, page, "exec"), names)


LONG = {
    f"docs/{page}.md"
    for page in ("start", "how/estimate-what-it-costs", "how/go-back-a-version", "how/adopt-a-full-table")
}
"""Pages whose commands take five seconds and more, which CI runs."""
WALKED = sorted(
    page.relative_to(ROOT).as_posix()
    for page in [ROOT / "docs/start.md", ROOT / "docs/starting.md", *ROOT.glob("docs/how/*.md")]
    if "```sh run" in page.read_text("utf-8")
)
"""Pages whose files and commands are tried from top to bottom, as a reader would."""


@pytest.mark.parametrize("page", [pytest.param(page, marks=[pytest.mark.ci] * (page in LONG)) for page in WALKED])
def test_the_commands_of_a_page_print_what_it_shows(page: str, tmp_path: Path) -> None:
    for name in ("handlers", "events"):
        shutil.copytree(ROOT / name, tmp_path / "work" / name)
    tools = tmp_path / "tools"
    tools.mkdir()
    for name, module in (("python", ""), ("streamfold", "-m streamfold")):
        (tools / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {module} "$@"\n')
        (tools / name).chmod(0o755)
    path = {"PATH": f"{tools}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": f"{ROOT / 'framework'}{os.pathsep}."}
    folder, before, printed, shown = tmp_path / "work", "", "", []
    for language, mark, text in BLOCK.findall((ROOT / page).read_text("utf-8")):
        if (language, mark.strip()) == ("sh", "run"):
            command = ["sh", "-ec", before + text]
            done = subprocess.run(
                command, cwd=tmp_path / "work", env={**os.environ, **path}, capture_output=True, text=True, check=False
            )
            assert done.returncode == 0, f"{page}: exit code {done.returncode} of\n{text}{done.stdout}{done.stderr}"
            printed += done.stdout + done.stderr
            for line in text.splitlines():
                if line.startswith(("cd ", "export ")):  # the next block goes on in this shell
                    before += f"{line}\n"
                    folder = folder / line[3:] if line.startswith("cd ") else folder
        elif named := FILE.match(text) if language == "python" else None:
            (folder / named[1]).write_text(text, "utf-8")
        elif language == "json":
            (folder / mark.strip()).write_text(text, "utf-8")
        elif language == "text":
            shown += text.splitlines()
    spaced = " ".join(printed.split())
    assert [line for line in shown if " ".join(line.split()) not in spaced] == []


def test_commands_marked_as_run_are_run() -> None:
    marked = {page.relative_to(ROOT).as_posix() for page in PAGES if "```sh run" in page.read_text("utf-8")}
    tried = {"docs/first-handler.md", "docs/testing.md", *WALKED}
    assert marked == tried, "No test runs the ```sh run blocks of other pages: add one."


@pytest.mark.parametrize("page", sorted(path.name for path in ROOT.glob("docs/how/*.md")))
def test_a_page_of_how_do_i_is_short_asks_and_has_an_example_that_runs(page: str) -> None:
    text = (ROOT / "docs/how" / page).read_text("utf-8")
    assert re.match(r"# How do I .+\?\n", text)
    assert len(text.splitlines()) <= HOW_LINES_MAX
    assert re.search(r"^def test_|^```sh run$", text, re.MULTILINE)


def test_how_do_i_has_a_dozen_questions() -> None:
    assert len(list(ROOT.glob("docs/how/*.md"))) >= 12


def test_every_page_with_examples_is_tested() -> None:
    tested = {*RUN, *RUN_AS_ONE, *WALKED, "README.md", "docs/first-handler.md", "docs/reading.md"}
    with_examples = {path.relative_to(ROOT).as_posix() for path in PAGES if "```python" in path.read_text("utf-8")}
    assert with_examples - tested == set()


def test_pages_name_the_kinds_that_may_be_backfilled_and_that_may_read_derived_rows() -> None:
    page = (ROOT / "docs/backfill.md").read_text("utf-8").partition("## What can be backfilled")[2]
    named: dict[bool, set[str]] = {True: set(), False: set()}
    for kinds, why in table_rows(page.partition("\n## ")[0])[2:]:
        named[why.startswith("**refused**")] |= set(re.findall(r"`(\w+)`", kinds))
    promises = (ROOT / "docs/guarantees.md").read_text("utf-8")
    (sentence,) = re.findall(r"\*\*Derived rows may be the source\*\*[^.]*", promises)
    assert named[False] == {kind.name for kind in KINDS if kind.reconciles}
    assert named[True] == {kind.name for kind in KINDS if not kind.reconciles}
    assert set(re.findall(r"`(\w+)`", sentence)) == {kind.name for kind in KINDS if kind.reads_derived}


def test_the_example_on_moto_needs_no_region_and_no_keys_of_the_reader() -> None:
    (text,) = [text for _, _, text in BLOCK.findall((ROOT / "docs/patterns.md").read_text("utf-8")) if "moto" in text]
    names: dict[str, Any] = {}
    exec(compile(text, "docs/patterns.md", "exec"), names)
    names["test_the_second_of_two_writers_is_refused"]()


@pytest.mark.usefixtures("aws")
def test_history_rows_that_are_there_are_redacted_as_the_page_says() -> None:
    page = (ROOT / "docs/audit.md").read_text("utf-8")
    (text,) = [text for _, _, text in BLOCK.findall(page) if "def redact_all" in text]
    names: dict[str, Any] = {}
    exec(compile(text, "docs/audit.md", "exec"), names)
    table = boto3.resource("dynamodb").Table("shop")
    make_table(table.meta.client, "shop", {"PK": "S", "SK": "S"})
    large = {"email": {"new": "a@b.c", "large": {"old": {"sha256": "x", "bytes": 5}}}, "n": {"new": 1}}
    for sort, part in (("1", {"changes": large}), ("2", {"unchanged": {"email": {"value": "a@b.c"}}}), ("3", {})):
        table.put_item(
            Item={"PK": "AUDIT#ORDER#1|METADATA", "SK": sort, "changes": {}, "digests": {"row": "x"}, **part}
        )
    for _ in range(2):
        names["redact_all"](table, "email")
    first, second, third = table.scan()["Items"]
    assert first["changes"] == {"email": {"redacted": ["new", "old"]}, "n": {"new": 1}}
    assert second["unchanged"] == {"email": {"redacted": ["value"]}}
    assert (["digests" in row for row in (first, second, third)]) == [False, False, True]


def test_the_readmes_costs_are_those_of_the_page_that_was_measured() -> None:
    rows = {cells[0]: cells for cells in table_rows((ROOT / "docs/performance.md").read_text("utf-8"))}
    ours, naive = rows["streamfold, exactly once"], rows["naive boto3, at least once"]
    seconds = [int(row[1].replace(",", "")) for row in (ours, naive, rows["Powertools with idempotency"])]
    said = [
        int(number.replace(",", ""))
        for number in re.findall(r"(?<![a-z])\d[\d,]*", README.partition("- records a second")[2])
    ]
    assert said[0] == pytest.approx(seconds[0] / seconds[1], rel=0.02)
    assert said[1] == pytest.approx(seconds[0] / seconds[2], rel=0.02)
    assert [f"{number:,}" for number in said[2:5]] == [ours[5], naive[5], ours[6]]


def table_rows(page: str) -> list[list[str]]:
    """The cells of all tables, line by line."""
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in page.splitlines() if line[:1] == "|"]


def test_every_benchmark_is_on_the_page_of_performance() -> None:
    assert set(BENCHMARKS) == {"strategies", *TITLES}


@pytest.mark.parametrize("name", WORKLOADS)
def test_the_page_of_performance_says_which_workload_a_section_measures(name: str) -> None:
    page = (ROOT / "docs/performance.md").read_text("utf-8")
    assert "\n\n".join([f"## {TITLES[name]}", *workload(name), "```text\n"]) in page


def test_the_command_lines_page_is_what_help_says() -> None:
    assert (ROOT / "docs/cli.md").read_text("utf-8") == cli_docs.page()


def test_the_pages_of_the_reference_are_what_docstrings_say() -> None:
    found = {path.name: path.read_text("utf-8") for path in (ROOT / "docs/reference").glob("*.md")}
    assert found == reference_docs.pages(), "python -m tests.tools.reference_docs makes them anew"


@pytest.mark.parametrize("page", ["upgrading", "security"])
def test_the_tests_that_hold_a_promise_exist(page: str) -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", (ROOT / f"docs/{page}.md").read_text("utf-8"))
    assert len(named) >= 5
    missing = [(file, test) for file, test in named if f"def {test}(" not in (ROOT / file).read_text("utf-8")]
    assert missing == []


def test_the_comparison_is_one_screen_and_each_row_of_others_has_a_source() -> None:
    text = (ROOT / "docs/comparison.md").read_text("utf-8")
    assert len(text.splitlines()) <= 30
    rows = [line for line in text.splitlines() if line.startswith("| ")][2:]
    assert len(rows) == 7
    for row in rows[1:6]:
        assert "https://" in row


def test_the_figures_of_the_comparison_are_those_that_were_measured() -> None:
    text = (ROOT / "docs/comparison.md").read_text("utf-8")
    measured = (ROOT / "docs/performance.md").read_text("utf-8")
    for name, columns in {
        "Powertools with idempotency": "36 records/s and 5,000 requests",
        "Powertools BatchProcessor, at least once": "60 records/s",
        "naive boto3, at least once": "60 records/s and 3,000 requests",
        "streamfold, exactly once": "streamfold 8,952 and 15",
    }.items():
        (row,) = (line for line in measured.splitlines() if line.startswith(f"| {name} |"))
        assert columns in text
        assert {*re.findall(r"[\d,]+\d", columns)} <= {*re.findall(r"[\d,]+\d", row)}
    assert "1.23 times boto3's" in text
    assert "STREAMFOLD_OBSERVE=lines: 1.23 of boto3" in measured


def anchors(page: str) -> set[str]:
    """The names under which GitHub links to the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", BLOCK.sub("", page), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize(
    "page",
    sorted(path.relative_to(ROOT).as_posix() for path in [ROOT / "README.md", *ROOT.glob("docs/**/*.md"), *WAYS_IN]),
)
def test_links_lead_somewhere(page: str) -> None:
    links = re.findall(r"\]\(([^)#]*)(?:#([^)]+))?\)", BLOCK.sub("", (ROOT / page).read_text("utf-8")))
    targets = [
        ((ROOT / page).parent / link if link else ROOT / page, anchor) for link, anchor in links if "://" not in link
    ]
    missing = [
        (path.name, anchor)
        for path, anchor in targets
        if not path.exists() or (anchor and anchor not in anchors(path.read_text("utf-8")))
    ]
    assert missing == []


OF_LONG_LINES = {"cli.md", "changelog.md"}
"""Pages that are generated, or where a change of the application is one line."""
PAGES = [
    ROOT / "README.md",
    *WAYS_IN,
    *sorted(path for path in ROOT.glob("docs/*.md") if path.name not in OF_LONG_LINES),
    *sorted(ROOT.glob("docs/how/*.md")),
]
LINE_LETTERS_MAX = 120


@pytest.mark.parametrize("page", [path.relative_to(ROOT).as_posix() for path in PAGES])
def test_lines_fit_a_screen(page: str) -> None:
    """Tables, code and the addresses of links may be longer."""
    text = BLOCK.sub("", (ROOT / page).read_text("utf-8"))
    lines = [re.sub(r"\]\([^)]+\)", "]", line) for line in text.splitlines() if not line.startswith("|")]
    assert [line for line in lines if len(line) > LINE_LETTERS_MAX] == []


def test_the_glossarys_types_exist() -> None:
    rows = re.findall(
        r"^\| ([^|]+) \| [^|]+ \| `([\w.]+)` \|$", (ROOT / "docs/glossary.md").read_text("utf-8"), re.MULTILINE
    )
    missing = [word for word, name in rows if not _is_there(name)]
    assert rows
    assert missing == []


def _is_there(name: str) -> bool:
    """Whether the package has a module of this name, or something of this name in a module."""
    module, _, last = f"streamfold.{name}".rpartition(".")
    return hasattr(importlib.import_module(module), last) or importlib.util.find_spec(f"{module}.{last}") is not None


def test_the_page_of_helpers_has_every_helper() -> None:
    folder = ROOT / "tests/helpers"
    described = set(re.findall(r"`(\w+)`", (folder / "README.md").read_text("utf-8").partition("## The helpers")[2]))
    assert described == {path.stem for path in folder.glob("*.py")}


def test_the_top_level_is_what_the_design_names() -> None:
    allowed = {
        "pyproject.toml",
        "README.md",
        "template.yaml",
        "Makefile",
        "LICENSE",
        "framework",
        "handlers",
        "tests",
        "events",
        "docs",
    }
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False).stdout.split()
    top = {name.split("/")[0] for name in listed}
    assert {name for name in top if not name.startswith(".")} <= allowed
