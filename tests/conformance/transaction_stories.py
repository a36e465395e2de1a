"""Stories of Kafka's own tools for transactions and features."""

from __future__ import annotations

import time
from collections.abc import Mapping

from confluent_kafka.admin import AdminClient

from kafkalite.client.net.connection import BrokerConnection
from kafkalite.client.net.settings import producer_settings
from kafkalite.protocol.schemas.produce import PRODUCE
from kafkalite.records.batch import Record, build
from tests.conformance.says import Says

VERSION = "Feature: transaction.version SupportedMinVersion: 0 SupportedMaxVersion: 2"
DESCRIBED = (
    "CoordinatorId TransactionalId ProducerId ProducerEpoch TransactionState TransactionTimeoutMs"
    " CurrentTransactionStartTimeMs TransactionDurationMs TopicPartitions"
)
LISTED = "TransactionalId Coordinator ProducerId TransactionState"
HANGING = "Topic Partition ProducerId ProducerEpoch CoordinatorEpoch StartOffset * Duration(min)"
PRODUCERS = (
    "ProducerId ProducerEpoch LatestCoordinatorEpoch LastSequence LastTimestamp"
    " CurrentTransactionStartOffset"
)
VERIFICATION = "transaction.partition.verification.enable"
PRODUCE_BY_NAME = 11
"""The last version of Produce that does not add its partitions to the transaction."""


def level(finalized: int) -> Says:
    return Says(
        "kafka-features describe", f"...\n{VERSION} FinalizedVersionLevel: {finalized} *\n...",
        soon=True,
    )  # fmt: skip


def refused(update: str, why: str) -> Says:
    feature, _, version = update.partition("=")
    return Says(
        f"kafka-features upgrade --feature {update}",
        f"Could not upgrade {feature} to {version}. *Invalid update version {version} for feature"
        f" {feature}. {why}*",
        "1 out of 1 operation(s) failed.",
        code=1,
    )


FEATURES = [
    level(2),
    Says(
        "kafka-features downgrade --feature transaction.version=1 --dry-run",
        "transaction.version can be downgraded to 1.",
    ),
    level(2),
    Says(
        "kafka-features downgrade --feature transaction.version=1",
        "transaction.version was downgraded to 1.",
    ),
    level(1),
    Says(
        "kafka-features disable --feature transaction.version",
        "transaction.version was disabled.",
    ),
    level(0),
    Says(
        "kafka-features upgrade --feature transaction.version=2",
        "transaction.version was upgraded to 2.",
    ),
    level(2),
    Says(
        "kafka-features upgrade --feature transaction.version=2",
        "transaction.version was upgraded to 2.",
    ),
    refused("transaction.version=1", "Can't downgrade the version of this feature without"),
    refused("transaction.version=7", "Local controller 0 only supports versions 0-2"),
    refused("no.such=1", "Local controller 0 does not support this feature."),
    level(2),
]

TRANSACTIONS = [
    # One partition: records without a key can all go to the same one.
    Says("kafka-topics --create --topic {t} --partitions 1", "Created topic {t}."),
    Says(
        "kafka-producer-perf-test --topic {t} --num-records 300 --record-size 100 --throughput -1"
        " --transactional-id {g} --transaction-duration-ms 20",
        "300 records sent, *",
    ),
    Says(
        "kafka-transactions list", f"{LISTED}\n...\n{{g}} 0 * CompleteCommit\n...", soon=True
    ),
    Says(
        "kafka-transactions list --transactional-id-pattern {g}.*",
        f"{LISTED}\n{{g}} 0 * CompleteCommit",
    ),
    Says("kafka-transactions list --transactional-id-pattern {g}.", LISTED),
    Says(
        "kafka-transactions list --transactional-id-pattern '{g}('",
        complains="Failed to list transactions: ListTransactions request sent to broker",
        code=1,
    ),
    Says(
        "kafka-transactions list --duration-filter 3600000 --transactional-id-pattern {g}", LISTED
    ),
    Says(
        "kafka-transactions list --duration-filter 0 --transactional-id-pattern {g}",
        f"{LISTED}\n{{g}} 0 * CompleteCommit",
    ),
    Says(
        "kafka-transactions describe --transactional-id {g}",
        f"{DESCRIBED}\n0 {{g}} * * CompleteCommit 60000 * *",
    ),
    Says(
        "kafka-transactions describe --transactional-id {g}-nobody",
        complains="Failed to describe transaction state of transactional-id `{g}-nobody`:"
        " DescribeTransactions request for transactionalId `{g}-nobody` failed because the ID could"
        " not be found.",
        code=1,
    ),
    Says(
        "kafka-transactions describe-producers --topic {t} --partition 0",
        f"{PRODUCERS}\n* * * -1 * None",
        soon=True,
    ),
    Says("kafka-transactions find-hanging --topic {t}", HANGING),
    Says(
        "kafka-transactions abort --topic {t} --partition 0 --start-offset 99999",
        complains="Could not find any open transactions starting at offset 99999 on partition"
        " {t}-0",
        code=1,
    ),
    Says("kafka-transactions forceTerminateTransaction --transactionalId {g}"),
    Says(
        "kafka-transactions describe --transactional-id {g}",
        f"{DESCRIBED}\n0 {{g}} * * Empty * None None",
    ),
    # An id without a transaction has begun it at time -1, so that it lasts longer than anything.
    Says(
        "kafka-transactions list --duration-filter 3600000 --transactional-id-pattern {g}",
        f"{LISTED}\n{{g}} 0 * Empty",
    ),
]

HANGING_TRANSACTIONS = [
    Says("kafka-topics --create --topic {t}", "Created topic {t}."),
    Says(
        f"kafka-configs --alter --broker-defaults --add-config {VERIFICATION}=false",
        "Completed updating default config for brokers in the cluster.",
    ),
    Says("", act="produce without a coordinator", soon=True),
    Says(
        f"kafka-configs --alter --broker-defaults --delete-config {VERIFICATION}",
        "Completed updating default config for brokers in the cluster.",
    ),
    Says(
        "kafka-transactions find-hanging --topic {t} --partition 0",
        f"{HANGING}\n{{t}} 0 4711 3 -1 0 * *",
    ),
    Says(
        "kafka-transactions describe-producers --topic {t} --partition 0",
        f"{PRODUCERS}\n4711 3 -1 0 * 0",
    ),
    Says(
        "kafka-console-consumer --topic {t} --from-beginning --isolation-level read_committed"
        " --timeout-ms 1000",
        complains="Processed a total of 0 messages",
    ),
    Says("kafka-transactions abort --topic {t} --partition 0 --start-offset 0"),
    Says("kafka-transactions find-hanging --topic {t} --partition 0", HANGING),
    Says(
        "kafka-transactions describe-producers --topic {t} --partition 0",
        f"{PRODUCERS}\n4711 3 0 0 * None",
    ),
    Says("kafka-console-producer --topic {t}", given="after\n"),
    Says(
        "kafka-console-consumer --topic {t} --from-beginning --isolation-level read_committed"
        " --max-messages 1",
        "after",
        "Processed a total of 1 messages",
    ),
]

COPIER = (
    "kafka-transactional-message-copier --input-topic {t} --output-topic {t}-copy"
    " --consumer-group {g} --transaction-size 5 --use-group-metadata"
)

COPIES = [
    Says("kafka-topics --create --topic {t} --partitions 2", "Created topic {t}."),
    # Each record is copied to the partition that it comes from.
    Says("kafka-topics --create --topic {t}-copy --partitions 2", "Created topic {t}-copy."),
    Says(
        "kafka-verifiable-producer --topic {t} --max-messages 20 --acks -1 --repeating-keys 3",
        '*"startup_complete"*\n...',
    ),
    Says("kafka-get-offsets --topic {t}", "{t}:0:13\n{t}:1:7", soon=True),
    Says(
        f"{COPIER} --input-partition 0 --transactional-id {{g}}-0",
        '...\n*"totalProcessed":13,"consumed":13,"remaining":0}\n...',
    ),
    # It is assigned both partitions, and goes on from the position of the first copier.
    Says(
        f"{COPIER} --input-partition 1 --transactional-id {{g}}-1 --group-mode --max-messages 7",
        '...\n*"totalProcessed":7,"consumed":7,"remaining":0}\n...',
    ),
    Says(
        "kafka-console-consumer --topic {t}-copy --from-beginning --isolation-level read_committed"
        " --timeout-ms 2000",
        "...",
        "Processed a total of 20 messages",
    ),
    # 20 records, and a marker for each transaction: three and two.
    Says("kafka-get-offsets --topic {t}-copy", "{t}-copy:0:16\n{t}-copy:1:9"),
    Says(
        "kafka-transactions list --transactional-id-pattern {g}.*",
        f"{LISTED}\n{{g}}-* 0 * CompleteCommit\n{{g}}-* 0 * CompleteCommit",
    ),
    Says("kafka-transactions find-hanging --topic {t}-copy", HANGING),
]

STORIES = {
    "features": FEATURES,
    "transactions": TRANSACTIONS,
    "hanging transactions": HANGING_TRANSACTIONS,
    "copies": COPIES,
}


def produce_without_a_coordinator(bootstrap: str, names: Mapping[str, str]) -> str:
    """Begin a transaction that no coordinator knows, an hour ago; return the error if it fails."""
    hour_ago_ms = time.time_ns() // 1_000_000 - 3_600_000
    batch = build(
        [Record(timestamp=hour_ago_ms, value=b"hanging")],
        producer_id=4711, producer_epoch=3, base_sequence=0, transactional=True,
    )  # fmt: skip
    asked = {
        "transactional_id": f"{names['g']}-hanging",
        "acks": -1,
        "timeout_ms": 10_000,
        "topic_data": [
            {"name": names["t"], "partition_data": [{"index": 0, "records": batch}]}
        ],
    }
    metadata = AdminClient({"bootstrap.servers": bootstrap}).list_topics(names["t"], timeout=10)
    leader = metadata.brokers[metadata.topics[names["t"]].partitions[0].leader]
    settings = producer_settings(f"{leader.host}:{leader.port}", {})
    connection = BrokerConnection(settings.addresses[0], settings)
    connection.open()
    try:
        response = connection.request(PRODUCE, asked, at_most=PRODUCE_BY_NAME)
    finally:
        connection.close()
    code = response.responses[0].partition_responses[0].error_code
    return f"Produce returned {code}" if code else ""


ACTS = {"produce without a coordinator": produce_without_a_coordinator}
