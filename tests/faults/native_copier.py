"""F23's copier with the native client: copies a partition in transactions, until nothing is left.

    python -m tests.faults.native_copier BOOTSTRAP PARTITION

Prints the number of messages that are left after each transaction, as Kafka's copier does, and
aborts every tenth transaction.  A fatal error ends the process; copying.py starts it again.
"""

from __future__ import annotations

import json
import random
import sys

from kafkalite import Consumer, Producer
from kafkalite.errors import KafkaError, ProducerFenced, RequestTimedOut
from tests.faults.copying import GROUP, SINK, SINK_PARTITIONS, SOURCE, TIMEOUT_MS, TRANSACTION_SIZE

ABORTED_SHARE = 0.1


class RandomAbort(Exception):
    """Aborts a transaction."""


def copy(bootstrap: str, partition: int) -> None:
    place = (SOURCE, partition)
    with (
        Producer(
            bootstrap, transactional_id=f"native-copier-{partition}",
            transaction_timeout_ms=TIMEOUT_MS,
        ) as producer,
        Consumer(bootstrap, group=GROUP, isolation_level="read_committed") as consumer,
    ):  # fmt: skip
        producer.init_transactions()
        consumer.assign([place])
        end = consumer.watermarks(place).high
        consumer.seek(place, consumer.committed(place)[place] or 0)
        while (position := consumer.position(place)) < end:
            messages = consumer.consume(TRANSACTION_SIZE, timeout=1)
            try:
                with producer.transaction() as transaction:
                    for message in messages:
                        to = message.offset % SINK_PARTITIONS
                        producer.send(SINK, message.value, partition=to)
                    transaction.commit_offsets(consumer)
                    if random.random() < ABORTED_SHARE:
                        raise RandomAbort
            except (ProducerFenced, RequestTimedOut):
                raise
            except (KafkaError, RandomAbort):
                consumer.seek(place, position)
            print(json.dumps({"remaining": end - consumer.position(place)}), flush=True)
        print(json.dumps({"remaining": 0}), flush=True)


if __name__ == "__main__":
    copy(sys.argv[1], int(sys.argv[2]))
