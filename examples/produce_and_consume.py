"""Write records to a topic, read them back, and continue from a committed offset.

make start                                              # in another terminal
python examples/produce_and_consume.py [HOST:PORT]      # default: 127.0.0.1:9092
"""

import sys

from kafkalite import Consumer, Producer

TOPIC = "orders"
ORDER_COUNT = 1000


def produce(bootstrap: str) -> None:
    with Producer(bootstrap, linger_ms=5) as producer:  # acks=all, idempotent
        for order_id in range(ORDER_COUNT - 1):
            producer.send(TOPIC, f"order {order_id}", key=f"customer {order_id % 7}")
        delivery = producer.send(TOPIC, f"order {ORDER_COUNT - 1}", headers=[("last", b"yes")])
        print("written:", delivery.result())  # waits for topic, partition, offset, timestamp


def consume(bootstrap: str) -> None:
    count = 0
    with Consumer(bootstrap, topics=TOPIC) as consumer:
        while count < ORDER_COUNT:
            count += len(consumer.consume(500, timeout=5))
    print("read:", count)


def consume_with_offsets(bootstrap: str) -> None:
    """Read half of the records and commit; a second consumer continues there."""
    with Consumer(bootstrap, group="report") as first:
        first.assign([(TOPIC, 0)])
        first.seek((TOPIC, 0), ORDER_COUNT // 2)
        first.commit()
    with Consumer(bootstrap, group="report") as second:
        second.assign([(TOPIC, 0)])
        message = second.poll(timeout=5)
        assert message is not None
        print("continued at offset:", message.offset)


if __name__ == "__main__":
    address = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9092"
    produce(address)
    consume(address)
    consume_with_offsets(address)
