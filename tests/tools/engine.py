#!/usr/bin/env python3
"""Fetch, start and stop a real engine for the tests: DynamoDB Local. Standard library only.

  engine.py fetch dynamodb                              into the cache; does nothing if it is there
  engine.py start dynamodb [--port N] [--run-dir DIR]   print the endpoint, leave the engine running
  engine.py stop  dynamodb [--run-dir DIR]              end it, by the process id that start wrote
  engine.py with  dynamodb -- COMMAND ...               start, run COMMAND with DYNAMODB_ENDPOINT and
                                                        DYNAMODB_CONTROL set, stop; pass its exit code on

Cache: ENGINES_CACHE, else ${XDG_CACHE_HOME:-~/.cache}/stream-engines.
Needs Linux on x86-64, a JDK 17 to 21 and Maven.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import platform
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True, slots=True)
class Artifact:
    """A Maven artifact."""

    group: str
    name: str
    version: str

    def element(self, *, type_and_scope: str = "") -> str:
        """Its <dependency> element."""
        return (
            f"<dependency><groupId>{self.group}</groupId><artifactId>{self.name}</artifactId>"
            f"<version>{self.version}</version>{type_and_scope}</dependency>"
        )


ENGINE = "dynamodb"
DYNAMODB_LOCAL = Artifact("software.amazon.dynamodb", "DynamoDBLocal", "3.3.1")
# DynamoDBLocal 3.3.1 asks for SDK 2.48.3, of which four jars cannot be had: so all of it, from one complete release.
SDK = Artifact("software.amazon.awssdk", "bom", "2.54.15")
SERVER_SOURCE = Path(__file__).with_name("DynamoDbTestServer.java")
JAVA_VERSIONS = range(17, 22)
JAVA_OPTIONS = ("-Xmx1g", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
"""The first compiler alone: in the minutes that tests take, the second costs more processor time than it saves."""

FETCH_ATTEMPTS = 3
FETCH_SECONDS = 900
START_SECONDS = 180
STOP_SECONDS = 15
KILL_SECONDS = 5


def fail(message: str) -> SystemExit:
    """The error that ends this program with a sentence and exit code 1."""
    return SystemExit(f"engine.py: {message}")


# --- fetch ------------------------------------------------------------------------------------------------------------


def cache_folder() -> Path:
    """Where fetched engines are kept, for every clone on this machine."""
    if named := os.environ.get("ENGINES_CACHE"):
        return Path(named).resolve()
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return (Path(base) / "stream-engines").resolve()


def project_object_model(dependency: str, managed: str) -> str:
    """The pom.xml whose run-time dependencies are the engine."""
    return (
        "<project><modelVersion>4.0.0</modelVersion>"
        "<groupId>local</groupId><artifactId>engine</artifactId><version>1</version><packaging>pom</packaging>"
        f"<dependencyManagement><dependencies>{managed}</dependencies></dependencyManagement>"
        f"<dependencies>{dependency}</dependencies></project>"
    )


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a lock file, so that two test runs at once fetch once."""
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def fetch() -> Path:
    """The folder with the engine's jars, fetched if it is not there yet."""
    cache = cache_folder()
    cache.mkdir(parents=True, exist_ok=True)
    home = cache / f"{ENGINE}-{DYNAMODB_LOCAL.version}"
    jar = f"{DYNAMODB_LOCAL.name}-{DYNAMODB_LOCAL.version}.jar"
    with locked(cache / f".{ENGINE}.lock"):
        if (home / jar).exists():
            return home
        work = Path(tempfile.mkdtemp(prefix=f".{ENGINE}-", dir=cache))
        try:
            sdk = SDK.element(type_and_scope="<type>pom</type><scope>import</scope>")
            copy_artifacts(work, DYNAMODB_LOCAL.element(), sdk)
            if not (work / "lib" / jar).exists():
                raise fail(f"{jar} is missing after the fetch")
            (work / "lib").rename(home)
        finally:
            shutil.rmtree(work, ignore_errors=True)
    return home


def copy_artifacts(work: Path, dependency: str, managed: str = "") -> None:
    """Have Maven put an artifact and all it depends on into work/lib."""
    maven = shutil.which("mvn")
    if not maven:
        raise fail("Maven is missing (on Debian and Ubuntu: apt-get install maven)")
    pom = work / "pom.xml"
    pom.write_text(project_object_model(dependency, managed))
    command = [maven, "-B", "-q", "-f", str(pom), "dependency:copy-dependencies", "-DincludeScope=runtime"]
    command.append(f"-DoutputDirectory={work / 'lib'}")
    for attempt in range(1, FETCH_ATTEMPTS + 1):
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=FETCH_SECONDS,
            check=False,
        )
        if done.returncode == 0:
            return
        if attempt == FETCH_ATTEMPTS:
            raise fail(f"Maven failed\n{done.stdout[-3000:]}")
        time.sleep(5 * attempt)


# --- start ------------------------------------------------------------------------------------------------------------


def java_home() -> Path:
    """A JDK that can run the test server from its source."""
    seen = []
    on_path = shutil.which("java")
    installed = sorted(Path("/usr/lib/jvm").glob("*/bin/java"))
    named = [Path(home) / "bin" / "java" for home in [os.environ.get("JAVA_HOME")] if home]
    for java in [*named, *([Path(on_path)] if on_path else []), *installed]:
        if not os.access(java, os.X_OK):
            continue
        home = java.resolve().parent.parent
        answer = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
        version = re.search(r'version "(\d+)', answer)
        compiles = os.access(home / "bin" / "javac", os.X_OK)
        if version and int(version[1]) in JAVA_VERSIONS and compiles:
            return home
        seen.append(f"{java}: {version[1] if version else '?'}{'' if compiles else ' without javac'}")
    found = f"; found {', '.join(seen)}" if seen else ""
    raise fail(f"a JDK 17 to 21 is missing (on Debian and Ubuntu: apt-get install openjdk-17-jdk-headless){found}")


def free_port() -> int:
    """A port that nothing subscriptions on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def answers(url: str) -> bool:
    """Tell whether DynamoDB Local is up: it answers 400 to a request without a signature."""
    try:
        urllib.request.urlopen(url, timeout=3).close()
    except urllib.error.HTTPError as error:
        return error.code == 400
    except OSError:
        return False
    return False


@dataclass(frozen=True, slots=True)
class Endpoints:
    """Where a started engine subscriptions, on loopback only."""

    engine: str
    control: str

    def environment(self) -> dict[str, str]:
        """What a command under `with` is told."""
        return {"DYNAMODB_ENDPOINT": self.engine, "DYNAMODB_CONTROL": self.control}


def start(run_folder: Path, port: int = 0) -> Endpoints:
    """Start the engine and wait until it answers. Leaves pid, control and out.log in the run folder."""
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        raise fail("DynamoDB Local's native library is fetched for Linux on x86-64 only")
    jars = fetch()
    java = java_home() / "bin" / "java"
    port = port or free_port()
    control_port = free_port()
    endpoints = Endpoints(engine=f"http://127.0.0.1:{port}", control=f"http://127.0.0.1:{control_port}")

    run_folder.mkdir(parents=True, exist_ok=True)
    (run_folder / "control").write_text(endpoints.control)
    command = [str(java), *JAVA_OPTIONS, f"-Djava.library.path={jars}", f"-Drun.dir={run_folder}"]
    command += ["-cp", f"{jars}/*", str(SERVER_SOURCE), str(port), str(control_port)]
    log = run_folder / "out.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            cwd=run_folder,
            env={**os.environ, "DDB_LOCAL_TELEMETRY": "0"},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    (run_folder / "pid").write_text(f"{process.pid} {began(process.pid)}")
    try:
        wait_until_up(process, log, endpoints.engine)
    except BaseException:  # SIGTERM and Ctrl-C while it starts, too
        stop(run_folder)
        raise
    return endpoints


def wait_until_up(process: subprocess.Popen[bytes], log: Path, url: str) -> None:
    """Wait until this very process subscriptions: another engine may answer on a port that was asked for."""
    deadline = time.monotonic() + START_SECONDS
    while not (b"ready" in log.read_bytes().splitlines() and answers(url)):
        if process.poll() is not None or time.monotonic() > deadline:
            tail = log.read_text(errors="replace")[-3000:]
            raise fail(f"{ENGINE} did not start (exit code {process.poll()}):\n{tail}")
        time.sleep(0.1)


# --- stop -------------------------------------------------------------------------------------------------------------


def began(pid: int) -> str:
    """When a process began: together with its id that names one process for good."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return ""


def stop(run_folder: Path) -> None:
    """End the engine that was started in this folder, if it is still that one."""
    pid_file = run_folder / "pid"
    if not pid_file.exists():
        return
    pid_text, _, birth = pid_file.read_text().partition(" ")
    pid = int(pid_text)
    pid_file.unlink()
    for number, seconds in ((signal.SIGTERM, STOP_SECONDS), (signal.SIGKILL, KILL_SECONDS)):
        if not birth or began(pid) != birth:  # gone, or the id is another's by now
            return
        os.killpg(pid, number)  # it leads a process group of its own
        if ended(pid, birth, seconds):
            return


def ended(pid: int, birth: str, seconds: float) -> bool:
    """Wait for a process to end, whether or not it is a child of this one."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            if os.waitpid(pid, os.WNOHANG)[0]:
                return True
        except ChildProcessError:  # started by an earlier run of this program
            if began(pid) != birth:
                return True
        time.sleep(0.05)
    return False


# --- the command line -------------------------------------------------------------------------------------------------


def run_with_engine(command: list[str]) -> int:
    """Run a command beside an engine that lives exactly as long."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    run_folder = Path(tempfile.mkdtemp(prefix=f"{ENGINE}-"))
    try:
        endpoints = start(run_folder)
        return subprocess.call(command, env={**os.environ, **endpoints.environment()})
    finally:
        stop(run_folder)
        shutil.rmtree(run_folder, ignore_errors=True)


def main(arguments: list[str]) -> int:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=["fetch", "start", "stop", "with"])
    parser.add_argument("engine", choices=[ENGINE])
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--run-dir", type=Path)
    split = arguments.index("--") if "--" in arguments else len(arguments)
    command = arguments[split + 1 :]
    options = parser.parse_args(arguments[:split])
    run_folder = (options.run_dir or cache_folder() / f"run-{ENGINE}").resolve()

    if options.action == "with":
        if not command:
            parser.error("with needs a command: engine.py with dynamodb -- COMMAND ...")
        return run_with_engine(command)
    if options.action == "fetch":
        print(fetch())
    else:
        stop(run_folder)  # start replaces what an earlier start left
        if options.action == "start":
            print(start(run_folder, options.port).engine)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
