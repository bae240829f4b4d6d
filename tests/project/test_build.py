"""What goes to Lambda: the files of handlers/ that git tracks, and of the framework what a function runs."""

import ast
import re
import shutil
import subprocess
import sys

import pytest

from tests.helpers.artifact import is_deployed
from tests.helpers.commands import ROOT, environment

FRAMEWORK = ROOT / "framework" / "streamfold"
DEPLOYED = ["handlers/__init__.py", "handlers/mappings/shop.json", "handlers/shop.py"]
RUN = [path for path in FRAMEWORK.rglob("*.py") if is_deployed(str(path.relative_to(FRAMEWORK.parent)))]
ENTRIES = ("app", "lambda_entry", "read")
"""What starts a function, and what a handler or an API imports to read rows."""


@pytest.fixture
def checkout(tmp_path):
    """A checkout with two files of handlers and a mapping, and one file that nobody should see."""
    shutil.copy(ROOT / "Makefile", tmp_path)
    (tmp_path / "handlers" / "mappings").mkdir(parents=True)
    for name in ("__init__.py", "shop.py", "mappings/shop.json", ".env.local"):
        (tmp_path / "handlers" / name).write_text("")
    return tmp_path


def run(checkout, *command):
    variables = environment(GIT_CONFIG_GLOBAL="/dev/null", GIT_CEILING_DIRECTORIES=str(checkout.parent))
    return subprocess.run(command, cwd=checkout, env=variables, capture_output=True, text=True, check=True)


def deployed(checkout):
    made = run(checkout, "make", "--no-print-directory", "--silent", "deployed-handlers")
    return sorted(made.stdout.split()), made.stderr


def test_only_files_that_git_tracks_are_deployed_and_others_are_named(checkout):
    run(checkout, "git", "init", "--quiet")
    run(checkout, "git", "add", "handlers/__init__.py", "handlers/shop.py", "handlers/mappings/shop.json")
    names, told = deployed(checkout)
    assert names == DEPLOYED
    assert told == "Not deployed, because git does not track it: handlers/.env.local\n"


def test_without_git_python_files_and_mappings_alone_are_deployed_and_that_is_said(checkout):
    names, told = deployed(checkout)
    assert names == DEPLOYED
    assert told == "git does not track handlers/: its Python files and mappings are deployed, and nothing else.\n"


def test_all_mappings_of_the_searches_are_deployed():
    mappings = {f"handlers/mappings/{path.name}" for path in (ROOT / "handlers" / "mappings").iterdir()}
    assert mappings
    assert mappings <= set(deployed(ROOT)[0])


ASKED_BY_COMMANDS = ("verified", "explained", "outside_costs")
"""Members of a kind that no function asks: what they import is not deployed for them."""


def imported(path):
    """The modules of the package that a module imports at any time, but for annotations and for commands."""
    tree = ast.parse(path.read_text("utf-8"))
    passed_over = [
        node
        for node in ast.walk(tree)
        if (isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING")
        or (isinstance(node, ast.FunctionDef) and node.name in ASKED_BY_COMMANDS)
    ]
    others = {node for each in passed_over for node in ast.walk(each)}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node not in others and (node.module or "").startswith("streamfold"):
            folder = ROOT / "framework" / node.module.replace(".", "/")
            yield from (folder, *(folder / each.name for each in node.names))


def reached():
    """The files that functions import."""
    waiting, found = [FRAMEWORK / each for each in ENTRIES], set()
    for each in ENTRIES:
        waiting += (FRAMEWORK / each).glob("*.py")
    while waiting:
        name = waiting.pop().with_suffix("")
        files = {name.with_suffix(".py"), *(folder / "__init__.py" for folder in (name, *name.parents))}
        new = {file for file in files - found if file.is_file() and FRAMEWORK in file.parents}
        found |= new
        waiting += [module for file in new for module in imported(file)]
    return found


def test_exactly_what_functions_import_is_deployed():
    needed, deployed_files = reached(), set(RUN)
    assert needed - deployed_files == set(), "functions import these: take them out of NOT_DEPLOYED in the Makefile"
    assert deployed_files - needed == set(), "no function imports these: add them to NOT_DEPLOYED in the Makefile"


def test_no_function_asks_a_kind_what_commands_ask():
    asks = re.compile(rf"\.(?:{'|'.join(ASKED_BY_COMMANDS)})\(")
    asking = {path.name for path in RUN if asks.search(path.read_text("utf-8"))}
    assert asking == {"kind.py"}, "a kind hands the question to its own module, and nobody else asks"


def test_a_function_runs_without_the_command_line_and_the_test_tools(tmp_path):
    for path in RUN:
        target = tmp_path / "streamfold" / path.relative_to(FRAMEWORK)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target)
    program = (
        "import importlib, sys; from pathlib import Path; from handlers import app; root = Path(sys.argv[1]); "
        "[importlib.import_module('.'.join(path.relative_to(root).with_suffix('').parts)) "
        "for path in root.rglob('*.py') if path.name != '__init__.py']; print(sys.modules['streamfold'].__file__)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)],
        env=environment(PYTHONPATH=f"{tmp_path}:{ROOT}"),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""
    assert done.stdout.strip() == str(tmp_path / "streamfold" / "__init__.py")


# Powertools goes along where somebody needs it.


@pytest.mark.parametrize(
    ("template", "handler", "lock"),
    [
        ("", "", ""),
        ("          STREAMFOLD_OBSERVE: lines # the default\n", "", ""),
        ('          "STREAMFOLD_OBSERVE": "off"\n', "", ""),
        ("          STREAMFOLD_OBSERVE_HANDLERS: on\n", "", ""),
        ("          STREAMFOLD_OBSERVE: powertools\n", "", "lambda-powertools.txt"),
        ('          STREAMFOLD_OBSERVE: "traced"\n', "", "lambda-powertools.txt"),
        ("          STREAMFOLD_OBSERVE: !Ref Observe\n", "", "lambda-powertools.txt"),
        ("", "from aws_lambda_powertools import Logger\n", "lambda-powertools.txt"),
        ("", "@router.on(ORDER, external=True)\n", "lambda-powertools.txt"),
    ],
)
def test_powertools_is_taken_where_the_template_or_a_handler_needs_it(checkout, template, handler, lock):
    (checkout / "template.yaml").write_text(template)
    (checkout / "handlers" / "shop.py").write_text(handler)
    assert run(checkout, "make", "--no-print-directory", "--silent", "powertools-lock").stdout.strip() == lock


def test_the_examples_are_built_without_powertools():
    assert run(ROOT, "make", "--no-print-directory", "--silent", "powertools-lock").stdout == ""


# Byte code, of the Python that the template names.

RUNTIME = f"{sys.version_info.major}.{sys.version_info.minor}"


OWN = '''"""A module."""
from dataclasses import dataclass

@dataclass
class Value:
    """A value."""
    field: int

class Plain:
    """A class with a docstring alone."""

def failing(number: int) -> None:
    """A function."""
    assert number, "none"
'''


@pytest.fixture
def artifact(checkout):
    """A built folder with a handler and a module of the framework, and a way to compile it for a template."""
    folder = checkout / "artifact"
    (folder / "streamfold").mkdir(parents=True)
    (folder / "module.py").write_text('"""A handler."""\n')
    (folder / "streamfold" / "__init__.py").touch()
    (folder / "streamfold" / "own.py").write_text(OWN)
    (checkout / "tests" / "tools").mkdir(parents=True)
    shutil.copy(ROOT / "tests/tools/byte_code.py", checkout / "tests/tools")

    def compiled(*runtimes, **given):
        functions = "".join(f"  F{n}:\n    Runtime: python{each} # its\n" for n, each in enumerate(runtimes))
        (checkout / "template.yaml").write_text(functions)
        settings = [f"{name}={value}" for name, value in given.items()]
        command = ["make", "--silent", "byte-code", f"ARTIFACTS_DIR={folder}", *settings]
        made = subprocess.run(command, cwd=checkout, capture_output=True, text=True, check=False)
        return made.returncode, made.stderr, {path.name for path in folder.rglob("*.pyc")}

    return compiled


def test_byte_code_is_of_the_python_of_the_functions(artifact):
    tag = f"cpython-{RUNTIME.replace('.', '')}"
    assert artifact(RUNTIME, RUNTIME) == (0, "", {f"{name}.{tag}.pyc" for name in ("__init__", "module", "own")})


def test_byte_code_of_the_framework_has_no_docstrings_and_annotations_and_fails_as_the_source_does(artifact, checkout):
    """What runs is the byte code: the source is changed afterwards."""
    artifact(RUNTIME)
    (checkout / "artifact/streamfold/own.py").write_text("# changed\n" * 13 + "    the line of the assertion\n")
    program = (
        "import module; from streamfold import own; "
        "print([each.__doc__ for each in (module, own, own.Value, own.Plain, own.failing)], "
        "own.failing.__annotations__, own.Value(field=1)); own.failing(0)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], cwd=checkout / "artifact", capture_output=True, text=True, check=False
    )
    assert ran.stdout.strip() == "['A handler.', None, 'A value.', None, None] {} Value(field=1)"
    assert ran.stderr.splitlines()[-3:] == [
        f'  File "{checkout}/artifact/streamfold/own.py", line 14, in failing',
        "    the line of the assertion",
        "AssertionError: none",
    ]


def test_sources_of_the_framework_lose_docstrings_and_comments_and_keep_the_lines_of_code(artifact, checkout):
    source = OWN + '# why\n\nLIMIT = "# none"  # why\n"""Its source."""\n'
    own = checkout / "artifact/streamfold/own.py"
    own.write_text(source)
    artifact(RUNTIME)
    built = own.read_text().split("\n")
    assert len(built) == len(source.split("\n"))
    kept = [(number, line) for number, line in enumerate(source.split("\n")) if line.strip() and built[number]]
    assert [built[number] for number, _ in kept] == [line.partition("  # why")[0] for _, line in kept]
    gone = [line.strip() for number, line in enumerate(source.split("\n")) if line.strip() and not built[number]]
    assert gone == ['"""A module."""', '"""A function."""', "# why", '"""Its source."""']
    assert (checkout / "artifact/module.py").read_text() == '"""A handler."""\n'


BYTES_MAX = 4_700_000
"""Of a function's files: each cold start of a new version fetches them. Moments, timers, collections, publishers,
roles of other accounts and secrets brought half a megabyte, most of it byte code."""


@pytest.mark.skipif(shutil.which("python3.13") is None, reason="the Python of the functions makes the byte code")
@pytest.mark.ci
def test_a_built_function_is_small(tmp_path):
    folder = tmp_path / "artifact"
    run(ROOT, "make", "--silent", "build-Projector", f"ARTIFACTS_DIR={folder}", "BYTECODE=required")
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert sum(path.suffix == ".pyc" for path in files) > 100
    assert sum(path.stat().st_size for path in files) < BYTES_MAX


def test_without_that_python_there_is_no_byte_code_and_the_build_says_so(artifact):
    status, message, files = artifact("3.99")
    assert (status, files) == (0, set())
    assert message.startswith("Without byte code: Python 3.99, which the functions run, is not on this machine.")


def test_a_build_that_requires_byte_code_stops_without_that_python(artifact):
    status, message, files = artifact("3.99", BYTECODE="required")
    assert (status, files) == (2, set())
    assert "Python 3.99, which the functions run, is not on this machine: install it" in message


def test_functions_of_two_pythons_are_refused(artifact):
    status, message, _ = artifact("3.12", "3.13")
    assert status == 2
    assert "template.yaml names these Pythons: 3.12 3.13." in message
