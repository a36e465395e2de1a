"""Carry out orders in steps of three services, and undo a step when a later one fails.

Each service reads the events of all, decides, and writes its own event in one transaction with the
offset of the event it has handled.  So each step is done once, however often a service restarts.
An order whose payment is declined releases what was reserved for it (the compensation).

    ordered ─▶ stock: reserved ─▶ payment: paid ─▶ shipping: shipped
                   │                  ╰── declined ─▶ stock: released
                   ╰── sold out

    make start                                              # in another terminal
    python examples/order_saga.py [HOST:PORT]               # default: 127.0.0.1:9092
"""

import json
import sys
import threading
from collections import Counter
from collections.abc import Callable

from kafkalite import Consumer, Producer

TOPIC = "order-events"
ORDER_COUNT = 60
ENDS = {"shipped", "sold out", "released"}

STOCK = 50

Event = dict[str, object]
Decide = Callable[[Event], str | None]
"""Returns the name of the next event of the order, or None."""


class Stock:
    """Reserves goods, and releases them if the payment is declined."""

    def __init__(self, events: list[Event]) -> None:
        names = Counter(event["name"] for event in events)
        self.left = STOCK - names["reserved"] + names["released"]

    def decide(self, event: Event) -> str | None:
        if event["name"] == "ordered":
            if self.left == 0:
                return "sold out"
            self.left -= 1
            return "reserved"
        if event["name"] == "declined":
            self.left += 1
            return "released"
        return None


def pay(event: Event) -> str | None:
    """Decline every fifth order that has its goods."""
    if event["name"] != "reserved":
        return None
    return "declined" if int(str(event["order"])) % 5 == 0 else "paid"


def ship(event: Event) -> str | None:
    return "shipped" if event["name"] == "paid" else None


def read(bootstrap: str) -> list[Event]:
    """Return the committed events."""
    events = []
    with Consumer(bootstrap, topics=TOPIC, isolation_level="read_committed") as consumer:
        while consumer.lag():
            events += [json.loads(message.value) for message in consumer.consume(500, timeout=1)]
    return events


def serve(
    bootstrap: str, name: str, start: Callable[[list[Event]], Decide], ended: threading.Event
) -> None:
    """Run a service until all orders have ended."""
    with (
        Producer(bootstrap, transactional_id=name) as producer,
        Consumer(bootstrap, group=name, isolation_level="read_committed") as consumer,
    ):
        producer.init_transactions()  # an earlier run can write nothing from here on
        decide = start(read(bootstrap))
        consumer.assign([(TOPIC, 0)])  # continues at the committed offset of the service
        while not ended.is_set():
            message = consumer.poll(timeout=0.2)
            if message is None:
                continue
            event = json.loads(message.value)
            with producer.transaction() as transaction:
                following = decide(event)
                if following is not None:
                    producer.send(TOPIC, json.dumps({"order": event["order"], "name": following}))
                transaction.commit_offsets(consumer)


def order(bootstrap: str) -> None:
    with Producer(bootstrap) as producer:
        for number in range(ORDER_COUNT):
            producer.send(TOPIC, json.dumps({"order": number, "name": "ordered"}))


def await_ends(bootstrap: str) -> Counter[str]:
    """Return how many orders ended in each way."""
    ends: Counter[str] = Counter()
    with Consumer(bootstrap, topics=TOPIC, isolation_level="read_committed") as consumer:
        while sum(ends.values()) < ORDER_COUNT:
            for message in consumer.consume(100, timeout=1):
                name = json.loads(message.value)["name"]
                ends.update([name] if name in ENDS else [])
    return ends


if __name__ == "__main__":
    address = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9092"
    order(address)
    all_ended = threading.Event()
    services: dict[str, Callable[[list[Event]], Decide]] = {
        "stock": lambda events: Stock(events).decide,
        "payment": lambda _: pay,
        "shipping": lambda _: ship,
    }
    threads = [
        threading.Thread(target=serve, args=(address, name, start, all_ended))
        for name, start in services.items()
    ]
    for thread in threads:
        thread.start()
    try:
        print(dict(sorted(await_ends(address).items())))
    finally:
        all_ended.set()
        for thread in threads:
            thread.join()
