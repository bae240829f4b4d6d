"""Calls of the command line, drawn at random: commands, options and arguments that fit, and such that do not.

A call is drawn from what click knows of each command, so a new command or option is called too. Its values are valid
ones, of other sorts, empty, very long, or with letters that a terminal or a file system takes badly.
"""

import re
from random import Random

import click

from streamfold.cli import COMMANDS, cli

CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""What no output may hold, whatever was given."""
HOSTILE = (
    "",
    " ",
    "-",
    "--",
    "-1",
    "0",
    "1",
    "10" * 30,
    "x" * 300,
    "a\x1b]0;PWNED\x07",
    "a\nb",
    "ä€😀",
    "\udcff",
    "null",
)
FILES = (
    "records.jsonl",
    "bad.jsonl",
    "packed.jsonl.gz",
    "keys",
    "report.json",
    "parked.jsonl",
    "no-such",
    ".",
    "folder",
)
STATES = ("state.db", "state.db", "state.db", "new.db", "records.jsonl", "folder", "no/such/state.db")
KEYS = ("ORDER#1", "META", "ITEM#a", "TOTAL", "ORDER#\x1b[2J\r\nall is well", "HOME#ada", "ORDER#1|META")
NAMES = ("order_total", "order_document", "timeline", "order_audit", "order_sums", "nope", "orders", "main")
URLS = ("http://127.0.0.1:1", "https://127.0.0.1:1", "ftp://x", "http://example.com")
BY_NAME = {
    "--state": STATES,
    "--app": ("handlers:app", "handlers:app", "handlers:nope", "nope:app", "handlers.py", "broken:app"),
    "--new": ("handlers:app", "handlers:nope"),
    "--old": ("handlers:app@.", "handlers:app@no-such", "handlers:app", "handlers:app@./folder"),
    "--engine": ("embedded", "embedded", "embedded", "nope"),
    "--table": ("main=shop", "main", "x=y", "=", "shop"),
    "--at": ("2026-03-01T10:00:00Z", "yesterday"),
    "--since": ("2026-03-01T10:00:00Z", "yesterday"),
    "--export": ("export/manifest-files.json", "no-such/manifest-files.json", "main=export/manifest-files.json"),
    "--faults": ("list", "kill", "nope", "kill,nope"),
    "--search-url": URLS,
    "--endpoint-url": URLS,
    "--tolerance": ("0", "-1"),
    "--runs": ("1", "2", "0"),
    "--spark-master": ("local",),
}
LEFT_OUT = {"--follow", "--max-lag"}
"""Options that wait for something."""
NUMBERS = ("1", "2", "0", "-1", "100", "1.5", "many")


def leaves(group=cli, path=()):
    """All commands that do something, by their words."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from leaves(command, (*path, name))
        else:
            yield (*path, name), command


LEAVES = dict(leaves())
assert {path[0] for path in LEAVES} == set(COMMANDS)


def call(seed):
    """The arguments of a call. Calls of one seed are alike."""
    random = Random(seed)
    path = random.choice(list(LEAVES))
    command = LEAVES[path]
    words = list(path)
    options = [each for each in command.params if isinstance(each, click.Option) and not LEFT_OUT & set(each.opts)]
    for option in options:
        if option.required or option.opts[0] == "--state" or random.random() < 0.15:
            words += _option(random, option)
    for argument in (each for each in command.params if isinstance(each, click.Argument)):
        words += _argument(random, argument)
    if random.random() < 0.03:
        words.insert(random.randrange(len(words) + 1), random.choice(HOSTILE))
    if random.random() < 0.03:
        words.append("--no-such-option")
    return words


def _option(random, option):
    name = option.opts[0]
    if option.is_flag:
        return [name]
    return [name, *(_value(random, option, name) for _ in range(option.nargs))]


def _argument(random, argument):
    number = random.choice((0, 1, 2)) if argument.nargs == -1 else int(argument.required or random.random() < 0.6)
    return [_value(random, argument, argument.name) for _ in range(number)]


def _value(random, parameter, name):
    if random.random() < 0.12:
        return random.choice(HOSTILE)
    if name in BY_NAME:
        return random.choice(BY_NAME[name])
    if isinstance(parameter.type, click.Choice):
        return random.choice([*map(str, parameter.type.choices), "nope"])
    if isinstance(parameter.type, click.types.IntParamType | click.types.FloatParamType):
        return random.choice(NUMBERS)
    if name in ("files", "sources", "--keys", "--from-verify", "--failed", "--out", "--park"):
        return random.choice(FILES)
    if name in ("handlers", "--handler", "handler", "name", "--index", "--feed"):
        return random.choice(NAMES)
    return random.choice(KEYS + NAMES)


FAILURE = re.compile(r"^(Error|Usage|Failed|Bad line|Stopped)\b", re.MULTILINE)


def problem(ran):
    """What is wrong with what a call printed and ended with; "" where nothing is."""
    text = ran.out + ran.err
    if "Traceback (most recent call last)" in text:
        return "a traceback"
    if ran.code not in (0, 1, 2):
        return f"exit code {ran.code!r}"
    if ran.code == 0 and FAILURE.search(ran.err):
        return "exit code 0 on a failure"
    if ran.code != 0 and not text.strip():
        return "a failure without a word"
    return "a control character" if CONTROLS.search(text) else ""
