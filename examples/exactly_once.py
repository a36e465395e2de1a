"""Consume, transform and produce exactly once, with the native client.

Each batch of orders is priced, and the bills are written in one transaction with the offsets of the
orders.  A run that ends anywhere, or fails, repeats nothing and loses nothing: readers with
isolation_level="read_committed" see one bill for each order.

    make start                                          # in another terminal
    python examples/exactly_once.py [HOST:PORT]         # default: 127.0.0.1:9092
"""

import json
import sys

from kafkalite import Consumer, Producer

ORDERS, BILLS, GROUP = "exact-orders", "exact-bills", "billing"
ORDER_COUNT = 1000
BATCH = 100


class Crash(Exception):
    """Stands for whatever may happen to a program."""


def write_orders(bootstrap: str) -> None:
    with Producer(bootstrap) as producer:
        for number in range(ORDER_COUNT):
            order = {"order": number, "pieces": number % 7 + 1}
            producer.send(ORDERS, json.dumps(order), key=f"customer {number % 50}")


def bill(bootstrap: str, crash_after: int | None = None) -> None:
    """Bill the orders behind the committed offsets; crash after some transactions if told to."""
    # The id names this job: a new run fences an earlier one that still lives somewhere.
    producer = Producer(bootstrap, transactional_id="billing")
    consumer = Consumer(bootstrap, group=GROUP, isolation_level="read_committed")
    with producer, consumer:
        # First, so that an earlier run cannot commit after its offsets were read here.
        producer.init_transactions()
        consumer.assign([(ORDERS, number) for number in range(producer.partitions_for(ORDERS))])
        done = 0
        while messages := consumer.consume(BATCH, timeout=5):
            with producer.transaction() as transaction:  # commits, or aborts after an exception
                for message in messages:
                    order = json.loads(message.value)
                    amount = {"order": order["order"], "amount": 3 * order["pieces"]}
                    producer.send(BILLS, json.dumps(amount), key=message.key)
                transaction.commit_offsets(consumer)
                if done == crash_after:
                    raise Crash
            done += 1


def read_bills(bootstrap: str) -> list[int]:
    with Consumer(bootstrap, topics=BILLS, isolation_level="read_committed") as consumer:
        messages = consumer.consume(ORDER_COUNT, timeout=30)
        messages += consumer.consume(1, timeout=2)  # one more would be an order billed twice
        return sorted(json.loads(message.value)["order"] for message in messages)


if __name__ == "__main__":
    address = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9092"
    write_orders(address)
    for transactions in (3, 1):
        try:
            bill(address, crash_after=transactions)
        except Crash:
            print("crashed inside transaction", transactions + 1)
    bill(address)
    orders = read_bills(address)
    print("bills:", len(orders), "orders billed once:", orders == list(range(ORDER_COUNT)))
