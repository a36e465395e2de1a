"""Stories of Kafka's tool for reassignments under a throttle, which sets and removes configs.

`{t}` has one partition with 20 MB on node 1, and `{d}/moves.json` moves it to nodes 1 and 2.
"""

from __future__ import annotations

from tests.conformance.says import Says

TOOL = "kafka-reassign-partitions --reassignment-json-file {d}/moves.json"
SLOW, FAST = 1_000, 1_000_000_000


def broker_config(rate: int | None, source: str = "DYNAMIC_BROKER_CONFIG") -> list[Says]:
    """The rates of node 1, which holds the records, and of node 2, which gets them."""
    rates = [
        f"{side}.replication.throttled.rate={rate} sensitive=false synonyms={{{source}:*}}"
        for side in ("follower", "leader")
    ]
    return [
        Says(
            f"kafka-configs --describe --broker {node}",
            "\n".join([f"Dynamic configs for broker {node} are:", *(rates if rate else [])]),
        )
        for node in (1, 2)
    ]


def topic_config(leader: str, follower: str) -> Says:
    throttled = [
        f"{side}.replication.throttled.replicas={replicas} sensitive=false synonyms=*"
        for side, replicas in (("follower", follower), ("leader", leader))
        if replicas
    ]
    return Says(
        "kafka-configs --describe --topic {t}",
        "\n".join(["Dynamic configs for topic {t} are:", *throttled]),
    )


REASSIGNMENT = [
    Says(
        f"{TOOL} --execute --throttle {SLOW}",
        f"""
Current partition replica assignment
{{"version":1,"partitions":[{{"topic":"{{t}}","partition":0,"replicas":[1],"log_dirs":["*"]}}]}}
Save this to use as the --reassignment-json-file option during rollback
Warning: You must run --verify periodically, until the reassignment completes, to ensure the \
throttle is removed.
The inter-broker throttle limit was set to {SLOW} B/s
Successfully started partition reassignment for {{t}}-0
""",
    ),
    *broker_config(SLOW),
    topic_config("0:1", "0:2"),
    Says(
        f"{TOOL} --verify",
        "Status of partition reassignment:\nReassignment of partition {t}-0 is still in progress.",
    ),
    Says(
        f"{TOOL} --execute --additional --throttle {FAST}",
        f"""
Current partition replica assignment
*
Save this to use as the --reassignment-json-file option during rollback
Warning: You must run --verify periodically, until the reassignment completes, to ensure the \
throttle is removed.
The inter-broker throttle limit was set to {FAST} B/s
Successfully started partition reassignment for {{t}}-0
""",
    ),
    Says(
        f"{TOOL} --verify",
        """
Status of partition reassignment:
Reassignment of partition {t}-0 is completed.
Clearing broker-level throttles on brokers *
Clearing topic-level throttles on topic {t}
""",
        soon=True,
    ),
    *broker_config(None),
    topic_config("", ""),
]
