"""Kafka Connect with exactly-once source support: a file's lines to a topic, each once."""

from __future__ import annotations

import json
import threading
import time
import urllib.error
import urllib.request
from typing import Any

from tests.conformance.java_client import SMALL
from tests.faults.application import PACE_S, WAIT_S_MAX, Application
from tests.faults.processes import free_address
from tools.apache_kafka import CONNECT_FILE, TOOLS, classpath, java_executable

CONNECT = "org.apache.kafka.connect.cli.ConnectDistributed"
CONVERTER = "org.apache.kafka.connect.storage.StringConverter"
SINK = "lines"
LINES_A_PACE = 50
ANSWER_S_MAX = 10.0
STORES = ("config", "offset", "status")


class FileSource(Application):
    """A distributed worker of Kafka Connect, and its connector for a file that grows.

    The file's lines are numbered: the topic must have all of them, in order.  The connector commits
    its position in the file in the transaction of the records.
    """

    name = "CONNECT"
    sources = ()
    sinks = (SINK,)
    partitions = 1
    progress_min = 100

    def __init__(self, *arguments: Any) -> None:
        self.lines: list[bytes] = []
        self.taken: list[bytes] = []
        self.is_ended = False
        super().__init__(*arguments)
        # The connector is kept in a topic: only the first worker is told of it.
        self.creator = threading.Thread(target=self.create_connector)
        self.creator.start()

    def prepare(self) -> None:
        self.file = self.scratch / "lines"
        self.file.touch()
        self.listener = f"http://{free_address()}"
        config = {
            "bootstrap.servers": self.victim.bootstrap,
            "group.id": "connect",
            "listeners": self.listener,
            "key.converter": CONVERTER,
            "value.converter": CONVERTER,
            "exactly.once.source.support": "enabled",
            "plugin.discovery": "service_load",
            "scheduled.rebalance.max.delay.ms": "0",
            "session.timeout.ms": "6000",
            "heartbeat.interval.ms": "500",
            "offset.flush.interval.ms": "500",
        }
        for store in STORES:
            config[f"{store}.storage.topic"] = f"connect-{store}"
            config[f"{store}.storage.replication.factor"] = "1"
        for store in STORES[1:]:
            config[f"{store}.storage.partitions"] = "1"
        self.properties = self.scratch / "connect.properties"
        self.properties.write_text("".join(f"{key}={value}\n" for key, value in config.items()))

    def command(self, instance: int) -> list[str]:
        jars = f"{classpath(CONNECT_FILE)}:{classpath(TOOLS)}"
        # The later level wins: what it says of a refusal is in the output.
        told = "-Dorg.apache.logging.log4j.level=ERROR"
        return [java_executable(), *SMALL, told, "-cp", jars, CONNECT, str(self.properties)]

    def create_connector(self) -> None:
        config = {
            "connector.class": "org.apache.kafka.connect.file.FileStreamSourceConnector",
            "tasks.max": "1",
            "file": str(self.file),
            "topic": SINK,
            # What is left over by a full batch waits until the file grows again.
            "batch.size": "1000000",
            "exactly.once.support": "required",
        }
        request = urllib.request.Request(
            f"{self.listener}/connectors/lines/config", json.dumps(config).encode(),
            {"Content-Type": "application/json"}, method="PUT",
        )  # fmt: skip
        deadline = time.monotonic() + WAIT_S_MAX
        refusal = ""
        while time.monotonic() < deadline and not self.is_ended:
            # It refuses connections until it has started, and connectors during a rebalance.
            try:
                with urllib.request.urlopen(request, timeout=ANSWER_S_MAX):
                    return
            except urllib.error.HTTPError as error:
                refusal = error.read().decode(errors="replace")
            except OSError as error:
                refusal = str(error)
            time.sleep(PACE_S)
        self.run.complaints.append(f"the connector was not created: {refusal[:500]}")

    def send(self) -> None:
        begin = len(self.lines)
        fresh = [b"%d" % number for number in range(begin, begin + LINES_A_PACE)]
        self.lines += fresh
        with self.file.open("ab") as file:
            file.write(b"".join(line + b"\n" for line in fresh))
        self.run.sent = len(self.lines)

    def take(self, topic: str, key: bytes | None, value: bytes | None) -> None:
        self.taken.append(value or b"")

    def is_complete(self) -> bool:
        return len(self.taken) >= len(self.lines)

    def judge(self) -> list[str]:
        if self.taken == self.lines:
            return []
        pairs = zip(self.taken, self.lines, strict=False)
        at = next((i for i, pair in enumerate(pairs) if pair[0] != pair[1]), None)
        return [
            f"{len(self.taken)} records of {len(self.lines)} lines, wrong from {at}:"
            f" {self.taken[at or 0 :][:5]}, the last {self.taken[-3:]}"
        ]

    def end(self) -> None:
        super().end()
        self.is_ended = True
        self.creator.join()
