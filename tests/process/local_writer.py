"""A program that writes through a ring as fast as it can until it is ended."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.broker.local_harness import LocalClient, batch_of
from tests.process.waiting import until


def run(path: str, cluster_id: str, node_id: int, topic_id: str) -> None:
    local_client = LocalClient(Path(path), until, cluster_id, node_id)
    assert local_client.hello().fields["error_code"] == 0
    writer = local_client.attach().writer
    batch = batch_of(b"x" * 1_000)
    said = False
    while True:
        room = writer.reserve(len(batch))
        if room is None:
            local_client.take_acks()
            continue
        room[:] = batch
        if writer.commit(bytes.fromhex(topic_id), 0, 1, 1, 30_000, len(batch)):
            local_client.ring.wake_worker()
        local_client.take_acks()
        if not said and local_client.acks:
            said = True
            print("writing", flush=True)


if __name__ == "__main__":
    run(*json.loads(sys.argv[1]))
