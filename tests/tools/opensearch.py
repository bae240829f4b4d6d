#!/usr/bin/env python3
"""Fetch real search servers for the tests: OpenSearch 2.19.6 and 3.6.0. Standard library only.

  python -m tests.tools.opensearch fetch [VERSION ...]   into the cache; does nothing for what is there

The cache is that of engine.py. Tests start the servers themselves (tests/search/servers.py). Fetching needs Maven.
Version 2.19.6 runs on Java 17 to 21, version 3.6.0 on Java 21 or newer.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from tests.tools import engine
from tests.tools.engine import Artifact, cache_folder, locked

VERSIONS = {
    "2.19.6": range(17, 22),
    "3.6.0": range(21, 100),
}
"""The versions, with the versions of Java that run them."""
DIGESTS = {
    "2.19.6": "71d6d8b1c637f3faecda0752b184b1cc526fc6eaad59ec1408c6327bb00b9293",
    "3.6.0": "a91faa1dc1cadc78cb278b4f63847e19e1627a4e9de698e14e7efc14ee37b286",
}
"""SHA-256 of the archives."""


def fail(message: str) -> SystemExit:
    """The error that ends this program with a sentence and exit code 1."""
    return SystemExit(f"opensearch.py: {message}")


# --- fetch ------------------------------------------------------------------------------------------------------------


def home_of(version: str) -> Path:
    """The folder that a version is unpacked to."""
    return cache_folder() / f"opensearch-{version}"


def is_there(version: str) -> bool:
    """Whether a version was fetched, and a Java is there that runs it."""
    return (home_of(version) / "bin" / "opensearch").exists() and bool(java_homes(version))


def fetch(version: str) -> Path:
    """The folder of a version, fetched if it is not there yet."""
    cache = cache_folder()
    cache.mkdir(parents=True, exist_ok=True)
    home = home_of(version)
    with locked(cache / f".opensearch-{version}.lock"):
        if (home / "bin" / "opensearch").exists():
            return home
        work = Path(tempfile.mkdtemp(prefix=".opensearch-", dir=cache))
        try:
            unpacked(copied(work, version), work).rename(home)
        finally:
            shutil.rmtree(work, ignore_errors=True)
    return home


def copied(work: Path, version: str) -> Path:
    """Has Maven copy the archive of a version, and checks its digest."""
    archive = Artifact("org.opensearch.distribution.integ-test-zip", "opensearch", version)
    engine.copy_artifacts(work, archive.element(type_and_scope="<type>zip</type>"))
    path = work / "lib" / f"opensearch-{version}.zip"
    if not path.exists():
        raise fail(f"{path.name} is missing after the fetch")
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != DIGESTS[version]:
        raise fail(f"{path.name} has the digest {digest}: expected {DIGESTS[version]}")
    return path


def unpacked(archive: Path, work: Path) -> Path:
    """The unpacked archive, with programs that can be run, readable to whichever user runs them."""
    with zipfile.ZipFile(archive) as file:
        file.extractall(work)
    home = work / archive.stem
    for path in [home, *home.rglob("*")]:
        path.chmod(0o755 if path.is_dir() or path.parent == home / "bin" else 0o644)
    return home


# --- Java -------------------------------------------------------------------------------------------------------------


def java_homes(version: str) -> list[Path]:
    """The Java installations that run a version, those that the environment names first."""
    named = [Path(home) for name in ("JAVA21_HOME", "JAVA_HOME") if (home := os.environ.get(name))]
    on_path = shutil.which("java")
    found = [
        *named,
        *([Path(on_path).resolve().parents[1]] if on_path else []),
        *sorted(Path("/usr/lib/jvm").glob("*")),
    ]
    return [home for home in dict.fromkeys(found) if java_version(home) in VERSIONS[version]]


def java_version(home: Path) -> int:
    """The main version of a Java installation; 0 where there is none."""
    if not os.access(home / "bin" / "java", os.X_OK):
        return 0
    answer = subprocess.run([home / "bin" / "java", "-version"], capture_output=True, text=True, check=False).stderr
    found = re.search(r'version "(\d+)', answer)
    return int(found[1]) if found else 0


# --- the command line -------------------------------------------------------------------------------------------------


def main(arguments: list[str]) -> int:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=["fetch"])
    parser.add_argument("versions", nargs="*", metavar="VERSION")
    options = parser.parse_args(arguments)
    for version in options.versions or VERSIONS:
        if version not in VERSIONS:
            raise fail(f"version {version} is not known: expected {', '.join(VERSIONS)}")
        print(fetch(version))
        if not java_homes(version):
            wanted = VERSIONS[version]
            raise fail(f"OpenSearch {version} needs Java {wanted[0]} or newer, and none was found")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
