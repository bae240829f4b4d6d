"""OpenSearch servers for the tests: each on loopback, with data of its own, ended with the tests that started it."""

import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

from tests.tools.engine import free_port
from tests.tools.opensearch import home_of, java_homes

START_SECONDS = 180
STOP_SECONDS = 20
BODY_BYTES_MAX = 2_000_000
"""The largest request that these servers take, so that a test of HTTP 413 is small."""
JAVA_OPTIONS = "-Xms512m -Xmx512m -XX:-AlwaysPreTouch -XX:TieredStopAtLevel=1"
NOT_WANTED = re.compile(r"gc\.log|^-Xm|HeapDump|ErrorFile")
"""Lines of the shipped jvm.options that write into the installation, or say how much memory there is."""
UNPRIVILEGED = 65534
SETTINGS = {
    "discovery.type": "single-node",
    "network.host": "127.0.0.1",
    "action.auto_create_index": False,
    "indices.breaker.total.use_real_memory": False,  # else a small heap answers 429 now and then
    "cluster.routing.allocation.disk.threshold_enabled": False,  # else a full disk makes indices read-only
    "http.max_content_length": f"{BODY_BYTES_MAX}b",
}


class Server:
    """One server. Its data are kept from ``start`` to ``start``, until ``remove``."""

    def __init__(self, version):
        self.version = version
        self.folder = Path(tempfile.mkdtemp(prefix=f"opensearch-{version}-"))
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.process = None

    def start(self, **settings):
        """Starts the server and waits until it answers; ``settings`` are added, with "__" for a dot."""
        self._configure({name.replace("__", "."): value for name, value in settings.items()})
        command = unprivileged([str(home_of(self.version) / "bin" / "opensearch")], self.folder)
        with (self.folder / "out.log").open("ab") as log:
            self.process = subprocess.Popen(
                command,
                cwd=self.folder,
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        try:
            self._wait()
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self):
        """Ends the server, if it runs, and waits until it is gone."""
        self._end(signal.SIGTERM) or self._end(signal.SIGKILL)

    def kill(self):
        """Ends the server at once, as ``kill -9`` does."""
        self._end(signal.SIGKILL)

    def remove(self):
        """Ends the server and removes its data."""
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def ask(self, method, path, body=None):
        """One request of a test; returns what the server answers, and raises ``HTTPError`` as urllib does."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"content-type": "application/json"}, method=method)
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.loads(answer.read() or b"null")

    @property
    def is_gone(self):
        return self.process is None or self.process.poll() is not None

    def _end(self, number):
        """Whether the server is gone after a signal to the processes that ``start`` started."""
        if self.is_gone:
            return True
        os.killpg(self.process.pid, number)  # it leads a process group of its own
        try:
            self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            return False
        return True

    def _configure(self, settings):
        conf = self.folder / "config"
        shutil.rmtree(conf, ignore_errors=True)
        for folder in (conf / "jvm.options.d", self.folder / "tmp"):
            folder.mkdir(parents=True, exist_ok=True)
        shipped = home_of(self.version) / "config"
        shutil.copy(shipped / "log4j2.properties", conf)
        lines = (shipped / "jvm.options").read_text().splitlines()
        (conf / "jvm.options").write_text("\n".join(line for line in lines if not NOT_WANTED.search(line)) + "\n")
        own = {
            "http.port": self.port,
            "transport.port": free_port(),
            "path.data": str(self.folder / "data"),
            "path.logs": str(self.folder / "logs"),
        }
        values = {**SETTINGS, **own, **settings}
        text = "".join(f"{name}: {json.dumps(value)}\n" for name, value in values.items())
        (conf / "opensearch.yml").write_text(text)

    def _environment(self):
        return {
            **os.environ,
            "OPENSEARCH_JAVA_HOME": str(java_homes(self.version)[0]),
            "OPENSEARCH_PATH_CONF": str(self.folder / "config"),
            "OPENSEARCH_TMPDIR": str(self.folder / "tmp"),
            "OPENSEARCH_JAVA_OPTS": JAVA_OPTIONS,
        }

    def _wait(self):
        deadline = time.monotonic() + START_SECONDS
        while not self._answers():
            if self.process.poll() is not None or time.monotonic() > deadline:
                tail = (self.folder / "out.log").read_text(errors="replace")[-3000:]
                raise RuntimeError(f"OpenSearch {self.version} did not start ({self.process.poll()}):\n{tail}")
            time.sleep(0.1)

    def _answers(self):
        """Whether this very server is up, with all its indices."""
        try:
            health = self.ask("GET", "/_cluster/health?wait_for_status=yellow&timeout=1s")
        except urllib.error.HTTPError as refused:
            refused.close()
            return False
        except (OSError, ValueError):
            return False
        return not health["timed_out"]


def unprivileged(command, folder):
    """A command as a user whom OpenSearch does not refuse: it runs for everybody but root."""
    if os.geteuid() != 0:
        return command
    space = ["unshare", "--user", "--map-user=1000", "--map-group=1000", "--"]
    if shutil.which("unshare") and subprocess.run([*space, "true"], capture_output=True, check=False).returncode == 0:
        return [*space, *command]
    for path in [folder, *folder.rglob("*")]:  # without name spaces of users: as nobody, whose the folder has to be
        os.chown(path, UNPRIVILEGED, UNPRIVILEGED)
    user = f"{UNPRIVILEGED}"
    return ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", "--", *command]
