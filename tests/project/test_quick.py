"""What ``make quick`` runs needs no AWS library."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
AWS_LIBRARIES = ("boto3", "botocore", "moto")
COLLECT = f"""
import sys

sys.modules.update(dict.fromkeys({AWS_LIBRARIES}))  # an import of them raises ImportError

import pytest

sys.exit(pytest.main(["--collect-only", "--quiet", "--quiet", "-p", "no:cacheprovider", *sys.argv[1:]]))
"""


def selected() -> list[str]:
    """The arguments that ``make quick`` gives to pytest, but for its marker and its number of processes."""
    planned = subprocess.run(["make", "--dry-run", "quick"], cwd=ROOT, capture_output=True, text=True, check=True)
    return re.findall(r"tests/\w+|--ignore-glob='[^']+'", planned.stdout.rpartition("-m pytest")[2])


def test_the_quick_tests_import_no_aws_library() -> None:
    arguments = [argument.replace("'", "") for argument in selected()]

    ran = subprocess.run(
        [sys.executable, "-c", COLLECT, *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )

    assert ran.returncode == 0, ran.stdout[-2000:]
    assert len(re.findall(r"^tests/\S+: \d+$", ran.stdout, re.MULTILINE)) > 20
