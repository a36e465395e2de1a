"""Consume, transform and produce exactly once, with confluent-kafka as a member of a group.

The same as exactly_once.py with another client: the broker needs no setting for it.  As a member
the consumer gets its partitions from the group; its metadata go with the offsets, so that a member
that was replaced cannot commit.

    make start                                                  # in another terminal
    python examples/exactly_once_confluent.py [HOST:PORT]       # default: 127.0.0.1:9092
"""

import sys

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

NUMBERS, SQUARES, GROUP = "exact-numbers", "exact-squares", "squaring"
COUNT = 500
BATCH = 100
TIMEOUT_S = 30


def write_numbers(bootstrap: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap})
    for number in range(COUNT):
        producer.produce(NUMBERS, str(number))
    producer.flush(TIMEOUT_S)


def square(bootstrap: str, failing_transaction: int) -> None:
    """Write the square of each number; one transaction fails once, and its input is read again."""
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": "squaring"})
    producer.init_transactions(TIMEOUT_S)
    consumer = Consumer({
        "bootstrap.servers": bootstrap, "group.id": GROUP, "auto.offset.reset": "earliest",
        "enable.auto.commit": False, "isolation.level": "read_committed",
    })  # fmt: skip
    consumer.subscribe([NUMBERS])
    done = transactions = 0
    while done < COUNT:
        messages = [each for each in consumer.consume(BATCH, 1) if each.error() is None]
        if not messages:
            continue
        producer.begin_transaction()
        transactions += 1
        try:
            for message in messages:
                producer.produce(SQUARES, str(int(message.value()) ** 2))
            producer.send_offsets_to_transaction(
                consumer.position(consumer.assignment()), consumer.consumer_group_metadata()
            )
            if transactions == failing_transaction:
                raise ValueError("this transaction fails")
            producer.commit_transaction(TIMEOUT_S)
            done += len(messages)
        except (KafkaException, ValueError) as error:
            print("aborted:", error)
            producer.abort_transaction(TIMEOUT_S)
            # Read the records of this transaction again.
            for first in reversed(messages):
                consumer.seek(TopicPartition(NUMBERS, first.partition(), first.offset()))
    consumer.close()


def read_squares(bootstrap: str) -> list[int]:
    consumer = Consumer({
        "bootstrap.servers": bootstrap, "group.id": "reading", "auto.offset.reset": "earliest",
        "isolation.level": "read_committed", "enable.partition.eof": True,
    })  # fmt: skip
    consumer.subscribe([SQUARES])
    found = []
    while (message := consumer.poll(TIMEOUT_S)) is not None and message.error() is None:
        found.append(int(message.value()))
    consumer.close()
    return sorted(found)


if __name__ == "__main__":
    address = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9092"
    write_numbers(address)
    square(address, failing_transaction=2)
    squares = read_squares(address)
    print("squares:", len(squares), "each once:", squares == [each**2 for each in range(COUNT)])
