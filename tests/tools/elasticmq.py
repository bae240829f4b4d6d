#!/usr/bin/env python3
"""Fetch and start a real SQS server for tests: ElasticMQ, whose FIFO queues drop repeated ids. Standard library only.

  python -m tests.tools.elasticmq fetch     into the cache; does nothing if it is there

The cache is that of engine.py. Tests start the server themselves. Fetching needs Maven, running a JDK 17 to 21.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tests.tools.engine import Artifact, cache_folder, copy_artifacts, free_port, java_home, locked

if TYPE_CHECKING:
    from collections.abc import Iterator

SERVER = Artifact("org.elasticmq", "elasticmq-server_2.13", "1.6.14")
START_SECONDS, STOP_SECONDS = 60, 10
JAVA_OPTIONS = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")


def home() -> Path:
    """The folder of the fetched jars."""
    return cache_folder() / f"elasticmq-{SERVER.version}"


def is_there() -> bool:
    return (home() / f"{SERVER.name}-{SERVER.version}.jar").exists()


def fetch() -> Path:
    """The folder with the server's jars, fetched if it is not there yet."""
    cache = cache_folder()
    cache.mkdir(parents=True, exist_ok=True)
    with locked(cache / ".elasticmq.lock"):
        if is_there():
            return home()
        work = Path(tempfile.mkdtemp(prefix=".elasticmq-", dir=cache))
        try:
            copy_artifacts(work, SERVER.element())
            (work / "lib").rename(home())
        finally:
            shutil.rmtree(work, ignore_errors=True)
    return home()


def answers(url: str) -> bool:
    """Whether the server is up: it refuses a request without an action, and so answers."""
    try:
        urllib.request.urlopen(url, timeout=3).close()
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False
    return True


@contextmanager
def serving() -> Iterator[str]:
    """The address of a server on loopback, which ends with the context."""
    port, folder = free_port(), Path(tempfile.mkdtemp(prefix="elasticmq-"))
    config = folder / "elasticmq.conf"
    config.write_text(
        'include classpath("application.conf")\n'
        f'node-address {{ protocol = http, host = "127.0.0.1", port = {port}, context-path = "" }}\n'
        f'rest-sqs {{ enabled = true, bind-port = {port}, bind-hostname = "127.0.0.1" }}\n'
        "rest-stats { enabled = false }\n"
    )
    command = [str(java_home() / "bin" / "java"), *JAVA_OPTIONS, f"-Dconfig.file={config}", "-cp", f"{home()}/*"]
    log = folder / "out.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*command, "org.elasticmq.server.Main"], stdin=subprocess.DEVNULL, stdout=output, stderr=output
        )
    url, deadline = f"http://127.0.0.1:{port}", time.monotonic() + START_SECONDS
    try:
        while not answers(url):
            if process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"elasticmq.py: it did not start:\n{log.read_text(errors='replace')[-2000:]}")
            time.sleep(0.1)
        yield url
    finally:
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def main(arguments: list[str]) -> int:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=["fetch"])
    parser.parse_args(arguments)
    print(fetch())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
