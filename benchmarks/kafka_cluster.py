"""Several Apache Kafka brokers and their controller, each a process: the peer of replication.

    with ApacheKafkaCluster(tmp_path, brokers=3) as kafka:
        Producer({"bootstrap.servers": kafka.bootstrap})
        kafka.kill(address)
        kafka.restart(address)

The controller has a process of its own, so that any broker can be killed while it runs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from tools.apache_kafka import ApacheKafka, free_ports

CONTROLLER_ID = 100
CONTROLLER = "controller"


class ClusterNode(ApacheKafka):
    """One process of a cluster: its controller or a broker."""

    def __init__(
        self,
        directory: Path,
        node_id: int,
        controller_port: int,
        cluster_id: str | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(directory, properties)
        self.node_id = node_id
        self.controller_port = controller_port
        self.cluster_id = cluster_id or self.cluster_id

    def _roles(self) -> dict[str, str]:
        if self.node_id == CONTROLLER_ID:
            self.port = self.controller_port
            role, listener = CONTROLLER, f"CONTROLLER://{self.bootstrap}"
        else:
            (self.port,) = free_ports(1)
            role, listener = "broker", f"PLAINTEXT://{self.bootstrap}"
        return {
            "process.roles": role,
            "node.id": str(self.node_id),
            "controller.quorum.voters": f"{CONTROLLER_ID}@{self.host}:{self.controller_port}",
            "controller.listener.names": "CONTROLLER",
            "listeners": listener,
        }


class ApacheKafkaCluster:
    """Brokers with ids from 1 on, alive between `__enter__` and `__exit__`."""

    def __init__(
        self, directory: Path, brokers: int = 3, properties: Mapping[str, str] | None = None
    ) -> None:
        (port,) = free_ports(1)
        self.controller = ClusterNode(directory / CONTROLLER, CONTROLLER_ID, port)
        cluster_id = self.controller.cluster_id
        self.brokers = [
            ClusterNode(directory / str(node_id), node_id, port, cluster_id, properties)
            for node_id in range(1, brokers + 1)
        ]
        self._running = contextlib.ExitStack()

    @property
    def bootstrap(self) -> str:
        """The address of a broker that runs."""
        return next(each.bootstrap for each in self.brokers if each.process is not None)

    @property
    def pids(self) -> list[int]:
        processes = [each.process for each in (self.controller, *self.brokers)]
        return [process.pid for process in processes if process is not None]

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as started:
            for each in (self.controller, *self.brokers):
                started.enter_context(each)
            self._running = started.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._running.close()

    def kill(self, address: str) -> None:
        """Kill the broker at this address."""
        self._at(address).kill()

    def restart(self, address: str) -> None:
        """Start a broker that was killed again, at its address."""
        self._at(address).restart()

    def _at(self, address: str) -> ClusterNode:
        return next(each for each in self.brokers if each.bootstrap == address)
