"""Stories of Kafka's own tools for a topic with three replicas, before and after a failover."""

from __future__ import annotations

from tests.conformance.says import Says

LOG_DIRS = """
Querying brokers for log directories information
Received log directory information from brokers 0,1,2,3
{*{"partition":"{t}-0","size":SIZE,"offsetLag":0*{"partition":"{t}-0","size":SIZE,"offsetLag":0*\
{"partition":"{t}-0","size":SIZE,"offsetLag":0*}
"""
THREE_SIZE, SIX_SIZE = "85", "170"
"""Sizes of one batch of three records and of two."""


def log_dirs(size: str) -> Says:
    """Each of the three replicas has this size."""
    printed = LOG_DIRS.replace("\\\n", "").replace("SIZE", size)
    return Says("kafka-log-dirs --describe --topic-list {t}", printed, soon=True)


def described(leader: str, isr: str) -> Says:
    return Says(
        "kafka-topics --describe --topic {t}",
        "Topic: {t} TopicId: * PartitionCount: 1 ReplicationFactor: 3 Configs: *\n"
        f"Topic: {{t}} Partition: 0 Leader: {leader} Replicas: 1,2,3 Isr: {isr} Elr: LastKnownElr:",
        soon=True,
    )


BEFORE_FAILOVER = [
    Says(
        "kafka-topics --create --topic {t} --replica-assignment 1:2:3"
        " --config min.insync.replicas=2",
        "Created topic {t}.",
    ),
    described("1", "1,2,3"),
    Says("kafka-console-producer --topic {t}", given="1\n2\n3\n"),
    log_dirs(THREE_SIZE),
    Says("kafka-topics --describe --topic {t} --under-replicated-partitions"),
    Says(
        "kafka-leader-election --election-type PREFERRED --topic {t} --partition 0",
        "Valid replica already elected for partitions {t}-0",
    ),
]
AFTER_FAILOVER = [
    # The process of the first leader is back, and in sync.
    described("2", "2,3,1"),
    Says("kafka-topics --describe --topic {t} --under-min-isr-partitions"),
    Says("kafka-console-producer --topic {t}", given="4\n5\n6\n"),
    log_dirs(SIX_SIZE),
    Says(
        "kafka-leader-election --election-type PREFERRED --topic {t} --partition 0",
        "Successfully completed leader election (PREFERRED) for partitions {t}-0",
    ),
    described("1", "2,3,1"),
    Says(
        "kafka-console-consumer --topic {t} --from-beginning --max-messages 6",
        "1\n2\n3\n4\n5\n6",
        "Processed a total of 6 messages",
    ),
]
