"""Every difference between Apache Kafka's responses and kafkalite's, with its reason.

A difference that is not listed here is a bug; one that is listed and no longer occurs fails as
well.  `*` matches anything; a path names a field of the response, with dots between.
"""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import NamedTuple

from tests.oracle.recording import ABSENT, Difference

ANYTHING = "(anything)"


class Listed(NamedTuple):
    """A field that may differ, and the reason; `ours` limits it to one value of kafkalite's."""

    scenes: str
    asked: str
    path: str
    why: str
    ours: object = ANYTHING

    def covers(self, found: Difference) -> bool:
        return (
            fnmatchcase(found.scene, self.scenes)
            and fnmatchcase(found.asked, self.asked)
            and fnmatchcase(found.path, self.path)
            and self.ours in (ANYTHING, found.ours)
        )


LATER = "comes with a later part; until then it is refused, never silently accepted"
SAYS_WHY = "Kafka refuses without a word; a sentence costs nothing and helps whoever reads the log"
UNOPENED = (
    "records that came plain are checked, but their times are not compared with the header's "
    "(ARCHITECTURE.md); Kafka corrects the header"
)
UNDECOMPRESSED = (
    "bytes that are not what their codec says are an invalid record, which no client sends again; "
    "Kafka answers with its unknown server error"
)
OUT_OF_TURN = (
    "records whose offsets contradict their batch are refused; Kafka takes or renumbers them"
)
ACCIDENT = "Kafka stumbles here and answers with its unknown server error, or nothing at all"
ONCE = "who says a thing twice is answered twice; Kafka keeps one of the two and drops the other"
IN_TIME = "what was done in time is no time-out, however little time was given"
TEXT = "a string is text, or the request is refused; Kafka puts signs of doubt into it"
ONE_NULL = "null is -1; any other negative length is a lie, and Kafka believes it"
ECHOED = "a topic without partitions is answered as it was sent"
AT_RUN_TIME = "what nothing stands against may be changed while it runs; Kafka wants a restart"
PERMITS_DEAD_LETTERS = "errors.deadletterqueue.group.enable"
NEWER = "the newer group protocols: " + LATER
LOW_BOUND = "members on the same host may be quick to find out that one has died"
IN_A_FILE = "the oracle was told in its file of properties; ours was told nothing, or by flags"
ITS_OWN_DEFAULT = (
    "a key that nobody set is told with the default that it has, where Kafka tells no synonyms of "
    "keys that are a topic's alone, nor of those that are said in hours"
)
DURABILITY = "durability is ours to name: its keys are not Kafka's"
UNPACKED = "records are bounded at max(16 MiB, 16 times their batch), not by a key of their own"
UNOPENED_BY_CHOICE = "Kafka has no key that saves the opening of compressed batches"

DIFFERENCES = (
    # ApiVersions
    Listed("cluster.*", "ApiVersions *", "api_keys.*", "what is listed is served, and no more"),
    Listed(
        "wire.versions_yet_unknown*", "*", "api_keys.*",
        "whoever asks in an unknown version is told all versions; Kafka tells ApiVersions' own",
    ),
    Listed(
        "cluster.versions_are_told*", "*", "*_features*",
        "features are levels of what later parts bring; none is there to be finalized",
    ),
    # The transaction coordinator
    Listed("coordinator.*", "Produce *", "*.error_message", SAYS_WHY),
    Listed(
        "coordinator.*", "Produce *", "*.log_start_offset",
        "a refused batch tells nothing of the log; in Kafka it depends on who refused it",
        ours=-1,
    ),
    Listed(
        "coordinator.descriptions_*", "DescribeTransactions * 2 ids", "transaction_states",
        "an id that is named twice is described once",
    ),
    # Metadata and DescribeTopicPartitions
    Listed(
        "cluster.a_topic_asked_for_is_made*", "* not yet there", "topics.0.*",
        "a topic that is asked for is there when the answer goes out; Kafka says: ask again",
    ),
    Listed("cluster.a_topic_may_be_asked_for*", "* by neither", "*error_code", ACCIDENT),
    Listed(
        "cluster.a_topic_may_be_asked_for*", "* one by id, one by name", "topics",
        "each is answered; where any topic has an id, Kafka forgets those that have a name",
    ),
    Listed("cluster.topics_are_described_page*", "* ''", "topics.0.error_code", ACCIDENT),
    Listed(
        "cluster.topics_are_described_page*", "*", "topics.*.topic_authorized_operations",
        "of a topic that is not there nobody is told what he may do to it",
    ),
    # Produce
    Listed("produce.*", "*", "*.error_message", SAYS_WHY),
    Listed("produce.a_request_may_be_empty*", "* null records", "", ACCIDENT),
    Listed("produce.a_request_may_be_empty*", "* no partitions", "responses", ECHOED),
    Listed("produce.entries_may_come_twice*", "*", "*", ONCE),
    Listed(
        "produce.a_damaged_batch*", "* length one short", "*.error_code",
        "the byte left over is a second batch to us, a broken checksum to Kafka; both refuse",
    ),
    Listed(
        "produce.a_damaged_batch*", "*trailing bytes", "*",
        "bytes after the batch are somebody's mistake, and he is told; Kafka drops them",
    ),
    Listed("produce.a_damaged_batch*", "* codec ?", "*.error_code", ACCIDENT),
    Listed("produce.*", "*bytes that are not", "*.error_code", UNDECOMPRESSED),
    Listed("produce.lz4_is_one_frame*", "* linked blocks", "*.error_code", UNDECOMPRESSED),
    *(
        Listed(
            "produce.times_may_be_before_1970*", "Produce *", path,
            "a topic that compresses a batch again refuses its negative times as such; Kafka fails",
        )
        for path in ("*.error_code", "*.record_errors")
    ),
    Listed(
        "produce.times_may_be_before_1970*", "* plain into producer", "*.max_timestamp", UNOPENED
    ),
    *(
        Listed("produce.a_damaged_batch*", f"*{what}", "*.max_timestamp", UNOPENED)
        for what in (
            " max timestamp is not the greatest", " max timestamp unsaid", " timestamp negative",
        )
    ),
    *(
        Listed(
            "produce.a_damaged_batch*", f"*{what}", "*",
            "a bit that only a broker may set is refused; Kafka takes it in or takes it off",
        )
        for what in (" delete horizon bit", " append time bit")
    ),
    Listed("produce.a_damaged_batch*", "* offset delta *", "*", OUT_OF_TURN),
    Listed("produce.a_compressed_topic*", "* offset delta *", "*", OUT_OF_TURN),
    Listed(
        "produce.a_damaged_batch*", "* base offset *", "*",
        "the leader writes the base offset, so what the client wrote there does no harm",
    ),
    Listed(
        "produce.*", "Produce *", "*.log_start_offset",
        "a refused batch tells nothing of the log; in Kafka it depends on who refused it",
        ours=-1,
    ),
    Listed(
        "produce.an_idempotent_producer*", "* a negative epoch", "*.error_code",
        "a batch with a producer but no epoch contradicts itself, and is refused as such",
    ),
    # Fetch
    Listed(
        "fetch.what_does_not_exist*", "* isolation 7", "*",
        "any level but 'committed' reads everything; Kafka stumbles over it",
    ),
    Listed("fetch.sizes_bound_what_comes*", "* -1 *", "*", ACCIDENT),
    Listed(
        "fetch.replicas_are_nobody*", "* as replica 5", "*",
        "there are no followers yet: whoever says he is one is served as any reader",
    ),
    # Offsets
    Listed("offsets.what_does_not_exist*", "* twice", "topics*", ONCE),
    Listed("offsets.cuts_of_nothing_or_twice*", "* twice", "topics.0.partitions", ONCE),
    Listed(
        "offsets.an_epoch_ends*", "* epoch -2", "*",
        "an epoch that cannot be has no end; Kafka echoes it",
    ),
    # Topics
    Listed("topics.topics_are_made*", "* patience", "*", IN_TIME),
    Listed("topics.topics_are_deleted*", "* without patience", "*.error_code", IN_TIME),
    Listed("topics.*", "Produce *", "*.error_message", SAYS_WHY),
    Listed("topics.topics_are_widened*", "*", "*.error_message", SAYS_WHY),
    Listed("topics.*", "*", "*.configs.durability", DURABILITY),
    Listed("topics.*", "*", "*.configs.flush.bytes", DURABILITY),
    Listed("topics.*", "*", "*.configs.durable.copies", DURABILITY),
    Listed("topics.*", "*", "*.configs.flush.ms.value", DURABILITY),
    Listed("topics.*", "*", "*.configs.worker.dedicated", "a process for a partition is ours"),
    Listed("topics.*", "*", "*.configs.compressed.records.validate", UNOPENED_BY_CHOICE),
    Listed("topics.*", "*", "*.configs.remote.copy.lag.*", "tiers: " + LATER),
    Listed(
        "topics.*", "*", "*.configs.max.decompressed.message.bytes",
        UNPACKED,
    ),
    Listed(
        "topics.*", "*", "*.configs.min.insync.replicas.config_source",
        "Kafka writes its default into the cluster's own configuration; here it is a default",
    ),
    Listed(
        "topics.configs_are_checked*", "* spaces around", "*.configs.retention.ms.value",
        "a value is told as it was understood; Kafka keeps the spaces",
    ),
    # Groups
    Listed(
        "membership.a_group_has_a_coordinator*", "*", "error_message",
        "where nothing is wrong nothing is said; Kafka says NONE", ours="",
    ),
    Listed(
        "membership.a_group_has_*", "* a share *", "coordinators.0.error_message",
        "the message says what the key of a share partition looks like",
    ),
    Listed(
        "membership.odd_wishes*", "JoinGroup * a protocol without a name", "protocol_name",
        "a protocol that has no name is still the one that was agreed on, and not none",
    ),
    Listed("committed.whoever_reads*", "* no partitions", "topics", ECHOED),
    Listed("committed.offsets_are_deleted", "* no partitions", "topics", ECHOED),
    Listed(
        "committed.offsets_are_deleted", "* of a group without offsets", "*",
        "a group of which nothing is left is gone at once; Kafka finds that out by the next "
        "look for what has expired",
    ),
    Listed(
        "groups.groups_are_described*", "* unknown with operations", "*authorized_operations",
        "what may be done to a group that is not there is told as well",
    ),
    Listed("groups.groups_are_deleted*", "DeleteGroups v3 *", "*.error_message", SAYS_WHY),
    *(
        Listed("groups.what_groups_are_kept_in*", asked, path, why)
        for asked, path, why in (
            (
                "CreateTopics *", "*.error_code",
                "a topic of the broker's own is nobody's to make, whether or not it is there",
            ),
            ("Produce *", "*.error_message", SAYS_WHY),
            ("DescribeConfigs *", "*.error_message", SAYS_WHY),
        )
    ),
    # Looking behind the topics
    Listed("administration.a_leader_tells*", "*", "*.error_message", SAYS_WHY),
    Listed(
        "administration.a_leader_tells*", "* an illegal topic", "*.error_code",
        "a topic whose name cannot be is a topic that is not there", ours=3,
    ),
    Listed("administration.who_leads*", "* the same twice", "*", ONCE),
    Listed("administration.who_leads*", "* without patience", "*", IN_TIME),
    # Configuration
    Listed("configs.*", "DescribeConfigs *", "*.error_message", SAYS_WHY),
    Listed("configs.*", "*AlterConfigs *", "*.error_message", SAYS_WHY),
    Listed("configs.a_topic_tells*", "* twice", "results", ONCE),
    Listed("configs.*", "*", "*.configs.durability", DURABILITY),
    Listed("configs.*", "*", "*.configs.flush.bytes", DURABILITY),
    Listed("configs.*", "*", "*.configs.durable.copies", DURABILITY),
    Listed("configs.*", "*", "*.configs.flush.ms.value", DURABILITY),
    Listed("configs.*", "*", "*.configs.worker.dedicated", "a process for a partition is ours"),
    Listed("configs.*", "*", "*.configs.compressed.records.validate", UNOPENED_BY_CHOICE),
    Listed("configs.*", "*", "*.configs.remote.copy.lag.*", "tiers: " + LATER),
    Listed(
        "configs.*", "*", "*.configs.max.decompressed.message.bytes",
        UNPACKED,
    ),
    *(
        Listed(
            "configs.*", "*", f"*.configs.min.insync.replicas{path}",
            "Kafka writes its default into the cluster's own configuration; here it is a default",
        )
        for path in ("", ".config_source", ".synonyms")
    ),
    *(
        Listed(
            "configs.what_groups_and_metrics*", "*", f"*.configs.{kind}.*", NEWER, ours=ABSENT
        )
        for kind in ("share", "streams")
    ),
    *(
        Listed("configs.*", "*", f"*.configs.{key}.synonyms", ITS_OWN_DEFAULT)
        for key in (
            "*.replication.throttled.replicas", "remote.*", "flush.ms", "log.flush.interval.ms",
            "log.retention.ms", "retention.ms", "segment.jitter.ms", "segment.ms", "interval.ms",
            "match", "metrics", PERMITS_DEAD_LETTERS,
        )
    ),
    Listed(
        "configs.a_node_*", "*", "*.configs.*.replication.throttled.rate",
        "Kafka lists these keys only where they are set",
    ),
    *(
        Listed("configs.a_node_*", "*", f"*.configs.{key}.synonyms", IN_A_FILE)
        for key in (
            "group.initial.rebalance.delay.ms", "offsets.topic.num.partitions",
            "offsets.topic.replication.factor", "transaction.state.log.min.isr",
            "transaction.state.log.replication.factor",
            "share.coordinator.state.topic.min.isr",
            "share.coordinator.state.topic.replication.factor",
        )
    ),
    *(
        Listed(
            "configs.a_node_*", "*",
            f"*.configs.share.coordinator.state.topic.num.partitions{path}",
            "one process coordinates all share groups, so their log needs no more partitions",
        )
        for path in (".value", ".synonyms.0.value")
    ),
    *(
        Listed(
            "configs.a_node_*", "*", f"*.configs.{key}{path}",
            "all nodes are processes of one host, so followers keep up within a shorter time",
        )
        for key in ("replica.fetch.backoff.ms", "replica.lag.time.max.ms")
        for path in (".value", ".synonyms.0.value")
    ),
    *(
        Listed(
            "configs.a_node_*", "*", f"*.configs.leader.imbalance.{path}",
            "a returned node leads again within seconds; Kafka 3's key for the share is kept",
        )
        for path in (
            "check.interval.seconds.value", "check.interval.seconds.synonyms.0.value",
            "per.broker.percentage",
        )
    ),
    *(
        Listed(
            "configs.a_node_*", "*", f"*.configs.transaction.state.log.num.partitions{path}",
            "one process coordinates all transactions, so their log needs no more partitions",
        )
        for path in (".value", ".synonyms.0.value")
    ),
    *(
        Listed("configs.a_node_*", "*", f"*.configs.{path}", why)
        for path, why in (
            ("advertised.listeners.value", "where it is found is told; Kafka tells null"),
            ("auto.create.topics.enable.read_only", AT_RUN_TIME),
            ("num.partitions.read_only", AT_RUN_TIME),
            ("listeners.read_only", "listeners are what it was started with"),
            ("log.dirs.config_source", IN_A_FILE),
            ("log.dirs.synonyms.0.*", IN_A_FILE),
            ("node.id.config_source", IN_A_FILE),
            ("node.id.synonyms.0.source", IN_A_FILE),
            ("offsets.topic.replication.factor.config_source", IN_A_FILE),
            ("share.coordinator.state.topic.min.isr.config_source", IN_A_FILE),
            ("share.coordinator.state.topic.min.isr.value", IN_A_FILE),
            ("share.coordinator.state.topic.replication.factor.config_source", IN_A_FILE),
            ("transaction.state.log.min.isr.config_source", IN_A_FILE),
            ("transaction.state.log.min.isr.value", IN_A_FILE),
            ("transaction.state.log.replication.factor.config_source", IN_A_FILE),
        )
    ),
    Listed(
        "configs.a_node_tells_its*", "* of node '00'", "*",
        "a node's id has one way to be written",
    ),
    Listed(
        "configs.*", "* a key nobody knows", "*.error_code",
        "a key that nobody knows cannot be set, and is never silently accepted",
    ),
    Listed(
        "configs.a_node_is_configured_while*", "* of node '7'", "*.error_code",
        "there is a code for a node that is not there", ours=102,
    ),
    Listed(
        "configs.metrics_and_groups*", "* metrics' interval.ms soon", "*.error_code",
        "whatever is wrong with a value of a client's metrics is an invalid request; Kafka calls "
        "a word for a number an invalid config",
    ),
    *(
        Listed("configs.a_node_tells_all*", "*", f"results.0.configs.{path}", why, ours=ours)
        for path, why, ours in (
            ("*", "keys of what a later part brings, or of what one host does not have", ABSENT),
            ("*.read_only", AT_RUN_TIME, False),
            ("num.recovery.threads.per.data.dir.read_only", "read once, at the start", True),
            ("log.flush.interval.ms.*", DURABILITY, ANYTHING),
            ("group.initial.rebalance.delay.ms.config_source", IN_A_FILE, 5),
            ("offsets.topic.num.partitions.config_source", IN_A_FILE, 5),
            ("queued.max.request.bytes.*", "what may wait is bounded from the start", ANYTHING),
            ("queued.max.response.bytes", "answers that wait are bounded as well", ANYTHING),
            ("metrics.listener", "figures are served by ourselves", ANYTHING),
            ("gateway.*", "ZeroMQ is taken in by ourselves", ANYTHING),
            ("native.*", "memory is shared with programs of one host", ANYTHING),
            ("storage.min.free.bytes", "a disk is not filled to its last byte", ANYTHING),
            ("broker.tick.timeout.ms", "the launcher restarts a process that hangs", ANYTHING),
            ("log.background.flush.interval.ms", DURABILITY, ANYTHING),
            (
                "producer.state.max.per.partition",
                "Kafka does not limit the producers that a partition remembers", ANYTHING,
            ),
            ("worker*", "processes of a host are ours", ANYTHING),
            ("group.consumer.regex.refresh.interval.ms", "Kafka does not describe it", ANYTHING),
            ("group.consumer.min.session.timeout.ms.*", LOW_BOUND, "1000"),
            ("group.consumer.min.heartbeat.interval.ms.*", LOW_BOUND, "100"),
            ("group.share.min.session.timeout.ms.*", LOW_BOUND, "1000"),
            ("group.share.min.heartbeat.interval.ms.*", LOW_BOUND, "100"),
            ("group.share.min.record.lock.duration.ms.*", LOW_BOUND, "1000"),
        )
    ),
    # Groups of the consumer protocol
    Listed(
        "consumer_groups.offsets_*", "OffsetFetch * an epoch alone", "groups.0.error_code",
        "a member that is not named is unknown; Kafka has an unexpected error", ours=25,
    ),
    Listed(
        "consumer_groups.groups_are_*", "ConsumerGroupDescribe *", "groups.0.error_message",
        "the error of an empty group id has a message", ours=ANYTHING,
    ),
    # Telemetry
    Listed(
        "telemetry.pushes_are_looked_at", "* bytes that are not compressed", "error_code",
        "what nobody receives is dropped as it came, and not opened first", ours=0,
    ),
    # Share groups
    Listed("share_groups.*", "ShareGroupHeartbeat *", "error_message", SAYS_WHY),
    Listed("share_groups.start_offsets_are_described*", "* no partitions", "*", ACCIDENT),
    Listed(
        "share_groups.start_offsets_are_altered", "DescribeShareGroupOffsets *", "*.lag",
        "no record is left of a start offset beyond the end; in Kafka the lag is negative", ours=0,
    ),
    Listed("share_records.*", "Share* *", "*error_message", SAYS_WHY),
    *(
        Listed(
            "share_records.requests_are_checked_first", asked, "responses",
            "the first response of a session names all its partitions, loaded or not",
        )
        for asked in ("* no records wanted", "* a group that is not there")
    ),
    Listed(
        "share_records.*", "DescribeShareGroupOffsets *", "*.start_offset",
        "the stored start offset passes acknowledged records at once, in Kafka at the next write",
    ),
    Listed(
        "share_records.deleted_records*", "DescribeShareGroupOffsets *", "*.lag",
        "the stored start offset passes deleted records at once, in Kafka at the next write",
    ),
    # Dead letters
    Listed("dead_letters.*", "DescribeConfigs *", "*.error_message", SAYS_WHY),
    Listed("dead_letters.*", "*", f"*.configs.{PERMITS_DEAD_LETTERS}.synonyms", ITS_OWN_DEFAULT),
    # The wire
    Listed("wire.headers_may_be_odd", "*client id that is no UTF-8", "", TEXT),
    Listed("wire.headers_may_be_odd", "*client id of negative length", "", ONE_NULL),
    Listed("wire.counts_that_lie*", "-2* topics said, one sent", "", ONE_NULL),
    Listed("wire.counts_that_lie*", "ffffffff0f topics said, one sent", "", ONE_NULL),
    Listed("wire.counts_that_lie*", "a name that is no UTF-8", "", TEXT),
)  # fmt: skip


def judge(family: str, found: Iterable[Difference]) -> tuple[list[Difference], list[Listed]]:
    """Return the differences of a family that are not listed, and its entries without one."""
    entries = [entry for entry in DIFFERENCES if entry.scenes.startswith(f"{family}.")]
    unlisted, needed = [], set()
    for difference in found:
        reasons = [entry for entry in entries if entry.covers(difference)]
        needed.update(reasons)
        if not reasons:
            unlisted.append(difference)
    return unlisted, [entry for entry in entries if entry not in needed]
