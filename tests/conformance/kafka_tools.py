"""Stories of Kafka's own command-line tools: commands, and the output that each must print.

The tools are Apache Kafka's, run in one JVM (java_tools/), against any broker.  In the expected
output `*` matches anything on a line and `...` any number of lines; whitespace is one blank.
`{t}` and `{g}` are a topic and a group of this story alone, `{d}` is an empty directory.
"""

from __future__ import annotations

import json
import re
import shlex
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tests.conformance import transaction_stories
from tests.conformance.driven import Program
from tests.conformance.java_client import tools_words
from tests.conformance.says import Says
from tests.conformance.table import Kafka

OF_ITS_OWN = "kafka.admin.ConfigCommand"
ADDRESS_WORDS = {"kafka-transactional-message-copier": "--broker-list"}
TOOLS = {
    "kafka-broker-api-versions": "BrokerApiVersionsCommand",
    "kafka-client-metrics": "ClientMetricsCommand",
    "kafka-cluster": "ClusterTool",
    "kafka-console-consumer": "consumer.ConsoleConsumer",
    "kafka-console-producer": "ConsoleProducer",
    "kafka-consumer-groups": "consumer.group.ConsumerGroupCommand",
    "kafka-consumer-perf-test": "ConsumerPerformance",
    "kafka-delete-records": "DeleteRecordsCommand",
    "kafka-e2e-latency": "EndToEndLatency",
    "kafka-features": "FeatureCommand",
    "kafka-get-offsets": "GetOffsetShell",
    "kafka-groups": "GroupsCommand",
    "kafka-leader-election": "LeaderElectionCommand",
    "kafka-log-dirs": "LogDirsCommand",
    "kafka-metadata-quorum": "MetadataQuorumCommand",
    "kafka-producer-perf-test": "ProducerPerformance",
    "kafka-reassign-partitions": "reassign.ReassignPartitionsCommand",
    "kafka-topics": "TopicCommand",
    "kafka-transactional-message-copier": "TransactionalMessageCopier",
    "kafka-transactions": "TransactionsCommand",
    "kafka-verifiable-consumer": "VerifiableConsumer",
    "kafka-verifiable-producer": "VerifiableProducer",
}


SOON_S_MAX = 30.0
PERF_COLUMNS = (
    "start.time, end.time, data.consumed.in.MB, MB.sec, data.consumed.in.nMsg, nMsg.sec, "
    "rebalance.time.ms, fetch.time.ms, fetch.MB.sec, fetch.nMsg.sec"
)
OFFSETS = """
GROUP TOPIC PARTITION CURRENT-OFFSET LOG-END-OFFSET LAG CONSUMER-ID HOST CLIENT-ID
"""
KEPT = (
    "--topic __consumer_offsets --from-beginning --timeout-ms 2000"
    " --formatter org.apache.kafka.tools.consumer"
)
NOBODY = "Consumer group '{g}' has no active members."

STORIES: dict[str, list[Says]] = {
    "topics": [
        Says(
            "kafka-topics --create --topic {t} --partitions 2 --config retention.ms=500000",
            "Created topic {t}.",
        ),
        Says("kafka-topics --create --topic {t}", "Error * already exists.", code=1),
        Says("kafka-topics --create --topic {t} --if-not-exists"),
        Says("kafka-topics --create --topic {t}/", "Error * topic command : *", code=1),
        Says(
            "kafka-topics --create --topic {t}-3 --replication-factor 9",
            "Error while executing topic command : *",
            code=1,
        ),
        Says(
            "kafka-topics --create --topic {t}-soon --config retention.ms=soon",
            "Error * : Invalid value soon for configuration retention.ms: *",
            code=1,
        ),
        Says("kafka-topics --list", "...\n{t}\n..."),
        Says(
            "kafka-topics --describe --topic {t}",
            """
Topic: {t} TopicId: * PartitionCount: 2 ReplicationFactor: 1 Configs: *retention.ms=500000*
Topic: {t} Partition: 0 Leader: * Replicas: * Isr: * Elr: LastKnownElr:
Topic: {t} Partition: 1 Leader: * Replicas: * Isr: * Elr: LastKnownElr:
""",
        ),
        Says("kafka-topics --alter --topic {t} --partitions 3"),
        Says("kafka-topics --alter --topic {t} --partitions 3", "Error * 3 partition*", code=1),
        Says("kafka-topics --describe --topic {t} --under-replicated-partitions"),
        Says("kafka-topics --describe --topic {t} --unavailable-partitions"),
        Says("kafka-topics --delete --topic {t}"),
        Says(
            "kafka-topics --describe --topic {t}",
            "Error * Topic '{t}' does not exist as expected",
            code=1,
        ),
    ],
    "records": [
        Says("kafka-topics --create --topic {t}", "Created topic {t}."),
        Says(
            "kafka-console-producer --topic {t}"
            " --reader-property parse.key=true --reader-property key.separator=:",
            given="a:1\nb:2\nc:3\n",
        ),
        Says(
            "kafka-console-consumer --topic {t} --from-beginning --max-messages 3"
            " --formatter-property print.key=true --formatter-property print.offset=true",
            "Offset:0 a 1\nOffset:1 b 2\nOffset:2 c 3",
            "Processed a total of 3 messages",
        ),
        Says(
            "kafka-console-consumer --topic {t} --partition 0 --offset 2 --max-messages 1",
            "3",
            "Processed a total of 1 messages",
        ),
        Says("kafka-get-offsets --topic {t}", "{t}:0:3"),
        Says("kafka-get-offsets --topic-partitions {t}:0 --time max-timestamp", "{t}:0:*"),
        Says(
            "kafka-delete-records --offset-json-file {d}/before-2.json",
            "Executing records delete operation\n"
            "Records delete operation completed:\npartition: {t}-0 low_watermark: 2",
        ),
        Says("kafka-get-offsets --topic {t} --time earliest", "{t}:0:2"),
        Says(
            "kafka-producer-perf-test --topic {t} --num-records 500 --record-size 100"
            " --throughput -1",
            "500 records sent, *",
        ),
        Says(
            "kafka-consumer-perf-test --topic {t} --group {g} --num-records 400 --timeout 9000",
            f"{PERF_COLUMNS}\n*, 0.0*, *",
        ),
        Says("kafka-get-offsets --topic {t} --time latest", "{t}:0:503"),
        Says(
            "kafka-verifiable-producer --topic {t} --max-messages 5 --value-prefix 7",
            '*"startup_complete"*\n...',
        ),
        # It does not wait for its records: a hook of the JVM's end does.
        Says("kafka-get-offsets --topic {t} --time latest", "{t}:0:508", soon=True),
        Says(
            "kafka-e2e-latency --topic {t} --num-records 5 --producer-acks all --record-size 9",
            "0 *\nAvg latency: * ms\nPercentiles: 50th = *, 99th = *, 99.9th = *",
        ),
    ],
    "groups": [
        Says("kafka-topics --create --topic {t} --partitions 2", "Created topic {t}."),
        Says("kafka-console-producer --topic {t}", given="1\n2\n3\n"),
        Says(
            "kafka-verifiable-consumer --topic {t} --group-id {g} --max-messages 3"
            " --group-instance-id one --reset-policy earliest",
            """
*"startup_complete"*
*"partitions_assigned","partitions":[{"topic":"{t}","partition":0},{"topic":"{t}",*:1}]*
...
*"offsets_committed"*"success":true}
...
*"shutdown_complete"*
""",
        ),
        Says("kafka-consumer-groups --list", "...\n{g}\n..."),
        Says("kafka-consumer-groups --list --state", "GROUP STATE\n...\n{g} *\n..."),
        Says(
            "kafka-groups --list --consumer",
            "GROUP TYPE PROTOCOL\n...\n{g} Classic consumer\n...",
        ),
        # A static member does not leave the group when it ends.
        Says(
            "kafka-consumer-groups --describe --group {g} --members",
            "GROUP CONSUMER-ID GROUP-INSTANCE-ID HOST CLIENT-ID #PARTITIONS\n"
            "{g} one-* one /* consumer-{g}-one 2",
        ),
        Says(
            "kafka-consumer-groups --delete --group {g}",
            "Error: Deletion of some consumer groups failed:\n"
            "* Group '{g}' could not be deleted due to: *GroupNotEmptyException: *",
        ),
        Says(
            "kafka-consumer-groups --reset-offsets --group {g} --topic {t} --to-earliest --execute",
            "Error: Assignments can only be reset if the group '{g}' is inactive, but the current "
            "state is Stable.\nGROUP TOPIC PARTITION NEW-OFFSET",
        ),
    ],
    "offsets of groups": [
        Says("kafka-topics --create --topic {t}", "Created topic {t}."),
        Says("kafka-console-producer --topic {t}", given="1\n2\n3\n"),
        Says(
            "kafka-console-consumer --topic {t} --group {g} --from-beginning --max-messages 3",
            "1\n2\n3",
            "Processed a total of 3 messages",
        ),
        Says(
            "kafka-consumer-groups --describe --group {g}",
            f"{OFFSETS}{{g}} {{t}} 0 3 3 0 - - -",
            NOBODY,
        ),
        # The records of the internal topics are in Kafka's formats.
        Says(
            f"kafka-console-consumer {KEPT}.OffsetsMessageFormatter",
            '...\n*{"group":"{g}","topic":"{t}","partition":0}},*"data":{"offset":3,"leader*\n...',
            "Processed a total of ",
        ),
        Says(
            f"kafka-console-consumer {KEPT}.GroupMetadataMessageFormatter",
            '...\n*{"group":"{g}"}},*{"protocolType":"consumer","generation":1,"pro*\n...',
            "Processed a total of ",
        ),
        Says(
            "kafka-consumer-groups --describe --group {g} --state",
            "GROUP COORDINATOR (ID) ASSIGNMENT-STRATEGY STATE #MEMBERS\n{g} * (0) - Empty 0",
            NOBODY,
        ),
        Says(
            "kafka-consumer-groups --reset-offsets --group {g} --topic {t} --shift-by -1 --dry-run",
            "GROUP TOPIC PARTITION NEW-OFFSET\n{g} {t} 0 2",
        ),
        Says(
            "kafka-consumer-groups --reset-offsets --group {g} --topic {t}:0 --to-offset 1"
            " --execute",
            "GROUP TOPIC PARTITION NEW-OFFSET\n{g} {t} 0 1",
        ),
        Says(
            "kafka-consumer-groups --describe --group {g} --offsets",
            f"{OFFSETS}{{g}} {{t}} 0 1 3 2 - - -",
            NOBODY,
        ),
        Says(
            "kafka-consumer-groups --reset-offsets --group {g} --all-topics"
            " --to-datetime 2020-01-01T00:00:00.000 --execute",
            "GROUP TOPIC PARTITION NEW-OFFSET\n{g} {t} 0 0",
        ),
        Says(
            "kafka-consumer-groups --delete-offsets --group {g} --topic {t}",
            "Request succeeded for deleting offsets from group {g}.\n"
            "TOPIC PARTITION STATUS\n{t} 0 Successful",
        ),
        Says(
            "kafka-consumer-groups --reset-offsets --group {g} --topic {t} --to-latest --execute",
            "GROUP TOPIC PARTITION NEW-OFFSET\n{g} {t} 0 3",
        ),
        Says(
            "kafka-consumer-groups --delete --group {g}",
            "Deletion of requested consumer groups ('{g}') was successful.",
        ),
        Says(
            "kafka-consumer-groups --describe --group {g}",
            "Error: *GroupIdNotFoundException: *{g}*",
            "GroupIdNotFoundException",
        ),
    ],
    "configs": [
        Says("kafka-topics --create --topic {t}", "Created topic {t}."),
        Says(
            "kafka-configs --alter --topic {t} --add-config segment.bytes=2000000,retention.ms=7",
            "Completed updating config for topic {t}.",
        ),
        Says(
            "kafka-configs --describe --topic {t}",
            """
Dynamic configs for topic {t} are:
retention.ms=7 sensitive=false synonyms={DYNAMIC_TOPIC_CONFIG:retention.ms=7*}
segment.bytes=2000000 * synonyms={DYNAMIC_TOPIC_CONFIG:segment.bytes=2000000, DEFAULT_CONFIG:*}
""",
        ),
        Says("kafka-configs --describe --topic {t} --all", "*\n...\n*cleanup.policy=delete *\n..."),
        Says(
            "kafka-configs --alter --topic {t} --delete-config segment.bytes",
            "Completed updating config for topic {t}.",
        ),
        Says(
            "kafka-configs --alter --topic {t} --add-config no.such.key=1",
            complains="InvalidConfigurationException: ",
            code=1,
        ),
        Says(
            "kafka-configs --alter --broker 0 --add-config log.cleaner.min.cleanable.ratio=0.7",
            "Completed updating config for broker 0.",
        ),
        Says(
            "kafka-configs --describe --broker 0",
            "Dynamic configs for broker 0 are:\n"
            "log.cleaner.min.cleanable.ratio=0.7 sensitive=false "
            "synonyms={DYNAMIC_BROKER_CONFIG:log.cleaner.min.cleanable.ratio=0.7, "
            "DEFAULT_CONFIG:log.cleaner.min.cleanable.ratio=0.5}",
            soon=True,
        ),
        Says(
            "kafka-configs --alter --broker 0 --delete-config log.cleaner.min.cleanable.ratio",
            "Completed updating config for broker 0.",
        ),
        Says("kafka-configs --describe --broker 0", "Dynamic configs for broker 0 are:", soon=True),
        Says(
            "kafka-configs --alter --broker 0 --add-config node.id=7",
            complains="InvalidRequestException: ",
            code=1,
        ),
        Says(
            "kafka-configs --describe --entity-type broker-loggers --entity-name 0",
            "Dynamic configs for broker-logger 0 are:\n...\n*=* sensitive=false *\n...",
        ),
        Says(
            "kafka-configs --alter --broker-defaults --add-config log.retention.ms=700000",
            "Completed updating default config for brokers in the cluster.",
        ),
        Says(
            "kafka-configs --describe --broker-defaults",
            """
Default configs for brokers in the cluster are:
...
log.retention.ms=700000 sensitive=false synonyms={DYNAMIC_DEFAULT_BROKER_CONFIG:*}
...
""",
        ),
        Says(
            "kafka-configs --alter --broker-defaults --delete-config log.retention.ms",
            "Completed updating default config for brokers in the cluster.",
        ),
        Says(
            "kafka-configs --describe --broker 0 --all",
            "All configs for broker 0 are:\n...\nadvertised.listeners=*\n...\nlog.dirs=*\n...",
        ),
        Says(
            "kafka-client-metrics --alter --name {g} --metrics org.apache.kafka. --interval 30000",
            "Altered client metrics config for {g}.",
        ),
        Says(
            "kafka-client-metrics --describe --name {g}",
            "Client metrics configs for {g} are:\n"
            "interval.ms=30000\nmatch=\nmetrics=org.apache.kafka.",
        ),
        Says("kafka-client-metrics --list", "...\n{g}\n..."),
        Says("kafka-client-metrics --delete --name {g}", "Deleted client metrics config for {g}."),
    ],
    "the cluster": [
        Says("kafka-topics --create --topic {t}", "Created topic {t}."),
        Says("kafka-console-producer --topic {t}", given="1\n"),
        Says("kafka-cluster cluster-id", "Cluster ID: *"),
        Says(
            "kafka-cluster list-endpoints",
            "ID HOST PORT RACK STATE ENDPOINT_TYPE\n0 127.0.0.1 * null unfenced broker\n...",
        ),
        Says("kafka-broker-api-versions", "...\nProduce(0): 0 to 13 *\n..."),
        Says("kafka-features describe", "..."),
        Says(
            "kafka-log-dirs --describe --topic-list {t}",
            """
Querying brokers for log directories information
Received log directory information from brokers 0*
{"brokers":[{*{"partition":"{t}-0","size":*,"offsetLag":0,"isFuture":false}*
""",
        ),
        Says(
            "kafka-leader-election --election-type PREFERRED --topic {t} --partition 0",
            "Valid replica already elected for partitions {t}-0",
        ),
        Says("kafka-leader-election --election-type PREFERRED --all-topic-partitions"),
        Says(
            "kafka-metadata-quorum describe --status",
            """
ClusterId: *
LeaderId: 0
LeaderEpoch: *
HighWatermark: *
MaxFollowerLag: 0
MaxFollowerLagTimeMs: 0
CurrentVoters: [{"id": 0, "endpoints": [*]}]
CurrentObservers: []
""",
        ),
        Says(
            "kafka-metadata-quorum describe --replication",
            "NodeId DirectoryId LogEndOffset Lag LastFetchTimestamp LastCaughtUpTimestamp Status\n"
            "0 * 0 * Leader",
        ),
        Says(
            "kafka-transactions describe-producers --topic {t} --partition 0",
            "ProducerId ProducerEpoch LatestCoordinatorEpoch LastSequence LastTimestamp "
            "CurrentTransactionStartOffset\n* 0 -1 0 * None",
        ),
    ],
}


STORIES |= transaction_stories.STORIES


def program() -> Program:
    """Start the program that runs the tools; raise Unavailable if it cannot be compiled."""
    return Program(tools_words())


def tell(story: str, program: Program, kafka: Kafka, directory: Path) -> str:
    """Run a story to its end, or up to the first command with another output; return that command
    and its output, or an empty string."""
    names = {"t": kafka.name(), "g": f"{kafka.name()}-group", "d": str(directory)}
    before_2 = {"partitions": [{"topic": names["t"], "partition": 0, "offset": 2}], "version": 1}
    (directory / "before-2.json").write_text(json.dumps(before_2))
    return tell_all(STORIES[story], program, kafka.bootstrap, names)


def tell_all(
    story: Iterable[Says], program: Program, bootstrap: str, names: Mapping[str, str]
) -> str:
    """Run these commands as `tell` does."""
    for says in story:
        begin = time.monotonic()
        wrong = told(program, bootstrap, says, names)
        while wrong and says.soon and time.monotonic() < begin + SOON_S_MAX:
            wrong = told(program, bootstrap, says, names)
        if wrong:
            return wrong
    return ""


def told(program: Program, bootstrap: str, says: Says, names: Mapping[str, str]) -> str:
    """Return a command with its output if that is not the expected one, or an empty string."""
    if says.act:
        return transaction_stories.ACTS[says.act](bootstrap, names)
    tool, *words = shlex.split(filled(says.command, names))
    where = [ADDRESS_WORDS.get(tool, "--bootstrap-server"), bootstrap]
    words = [*words, *where] if tool == "kafka-cluster" else [*where, *words]
    of = OF_ITS_OWN if tool == "kafka-configs" else f"org.apache.kafka.tools.{TOOLS[tool]}"
    answer = program.order("run", tool=of, words=words, given=says.given)
    return "" if fits(answer, says, names) else f"{says.command}\n{shown(answer)}"


def fits(answer: Mapping[str, Any], says: Says, names: Mapping[str, str]) -> bool:
    complains = filled(says.complains, names)
    quiet = complains in answer["complained"] and bool(
        complains or not re.search("Error|Exception", answer["complained"])
    )
    wanted = pattern(filled(says.prints, names))
    return (
        quiet and answer["code"] == says.code and bool(wanted.fullmatch(lines(answer["printed"])))
    )


def filled(text: str, names: Mapping[str, str]) -> str:
    """Replace the names in the text; other braces stay, because some tools print JSON."""
    for name, value in names.items():
        text = text.replace(f"{{{name}}}", value)
    return text


def lines(text: str) -> str:
    """Return all lines that are not empty, with single blanks and line ends."""
    return "".join(f"{' '.join(line.split())}\n" for line in text.splitlines() if line.strip())


def pattern(text: str) -> re.Pattern[str]:
    wanted = [
        r"(?:.*\n)*?" if line == "..." else re.escape(line).replace(r"\*", ".*") + r"\n"
        for line in lines(text).splitlines()
    ]
    return re.compile("".join(wanted))


def shown(answer: Mapping[str, Any]) -> str:
    complained = "\n".join(answer["complained"].splitlines()[:5])
    return f"ended with {answer['code']}, printed:\n{answer['printed']}\ncomplained:\n{complained}"
