"""Keep every event in one topic and the latest state in a compacted one, written together.

Each booking is an event; the balance that results from it replaces the account's earlier balance.
One transaction writes both, so the two topics never disagree.  A program that starts reads the
balances, which compaction keeps short.  The events give the balances of any earlier moment.

    make start                                              # in another terminal
    kafkalite topic create balances -c cleanup.policy=compact
    python examples/event_sourcing.py [HOST:PORT]           # default: 127.0.0.1:9092
"""

import json
import random
import sys
from datetime import UTC, datetime

from kafkalite import Consumer, Message, Producer

EVENTS, BALANCES = "bookings", "balances"
BOOKING_COUNT = 500


def read(bootstrap: str, topic: str) -> list[Message]:
    """Return the committed records of a topic."""
    messages = []
    with Consumer(bootstrap, topics=topic, isolation_level="read_committed") as consumer:
        while consumer.lag():
            messages += consumer.consume(1000, timeout=1)
    return messages


def rebuild(bootstrap: str) -> dict[str, int]:
    """Return the balance of each account; the last record of a key is valid, null removes it."""
    balances = {}
    for message in read(bootstrap, BALANCES):
        account = message.key.decode()
        if message.value is None:
            balances.pop(account, None)
        else:
            balances[account] = int(message.value)
    return balances


def book(bootstrap: str) -> dict[str, int]:
    """Write bookings, ten in a transaction; return the balances after them."""
    with Producer(bootstrap, transactional_id="bank") as producer:
        producer.init_transactions()  # an earlier run can write nothing from here on
        balances = rebuild(bootstrap)
        for _ in range(BOOKING_COUNT // 10):
            with producer.transaction():
                for _ in range(10):
                    account, amount = f"account {random.randrange(20)}", random.randrange(-50, 100)
                    balances[account] = balances.get(account, 0) + amount
                    event = {"account": account, "amount": amount}
                    producer.send(EVENTS, json.dumps(event), key=account)
                    producer.send(BALANCES, str(balances[account]), key=account)
    return balances


def balances_at(bootstrap: str, when: datetime) -> dict[str, int]:
    """Return the balances of an earlier moment, from the events until then."""
    balances: dict[str, int] = {}
    for message in read(bootstrap, EVENTS):
        if message.timestamp <= when.timestamp() * 1000:
            event = json.loads(message.value)
            account = event["account"]
            balances[account] = balances.get(account, 0) + event["amount"]
    return balances


if __name__ == "__main__":
    address = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9092"
    first = book(address)
    between = datetime.now(UTC)
    second = book(address)
    print("rebuilt from the compacted topic:", rebuild(address) == second)
    print("before the second run, from the events:", balances_at(address, between) == first)
    print("accounts:", len(second), "total:", sum(second.values()))
