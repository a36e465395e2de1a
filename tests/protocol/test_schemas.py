"""The schemas as a whole: the APIs and versions they cover, and rules for every field."""

from __future__ import annotations

import pytest
from kio.schema.index import api_key_map, schema_name_map

from kafkalite.protocol.schema import BY_KEY, Api
from kafkalite.protocol.schemas.cluster import API_VERSIONS
from kafkalite.protocol.types import Array, Field, Struct, Uuid, versions_of
from tests.protocol.oracles import BROKER_API_VERSIONS

# key, name, versions, first flexible version ("-": none), as in Kafka 4.5
TABLE = """
0 Produce 3-13 9; 1 Fetch 4-18 12; 2 ListOffsets 1-11 6; 3 Metadata 0-13 9; 8 OffsetCommit 2-10 8
9 OffsetFetch 1-10 6; 10 FindCoordinator 0-6 3; 11 JoinGroup 0-9 6; 12 Heartbeat 0-4 4
13 LeaveGroup 0-5 4; 14 SyncGroup 0-5 4; 15 DescribeGroups 0-6 5; 16 ListGroups 0-5 3
17 SaslHandshake 0-1 -; 18 ApiVersions 0-5 3; 19 CreateTopics 2-7 5; 20 DeleteTopics 1-6 4
21 DeleteRecords 0-2 2; 22 InitProducerId 0-6 2; 23 OffsetForLeaderEpoch 2-4 4
24 AddPartitionsToTxn 0-5 3; 25 AddOffsetsToTxn 0-4 3; 26 EndTxn 0-5 3; 27 WriteTxnMarkers 1-2 1
28 TxnOffsetCommit 0-6 3; 29 DescribeAcls 1-3 2; 30 CreateAcls 1-3 2; 31 DeleteAcls 1-3 2
32 DescribeConfigs 1-4 4; 33 AlterConfigs 0-2 2; 34 AlterReplicaLogDirs 1-2 2
35 DescribeLogDirs 1-5 2; 36 SaslAuthenticate 0-2 2; 37 CreatePartitions 0-3 2
38 CreateDelegationToken 1-3 2; 39 RenewDelegationToken 1-2 2; 40 ExpireDelegationToken 1-2 2
41 DescribeDelegationToken 1-3 2; 42 DeleteGroups 0-3 2; 43 ElectLeaders 0-2 2
44 IncrementalAlterConfigs 0-1 1; 45 AlterPartitionReassignments 0-1 0
46 ListPartitionReassignments 0 0; 47 OffsetDelete 0 -; 48 DescribeClientQuotas 0-1 1
49 AlterClientQuotas 0-1 1; 50 DescribeUserScramCredentials 0 0; 51 AlterUserScramCredentials 0 0
55 DescribeQuorum 0-2 0; 57 UpdateFeatures 0-2 0; 60 DescribeCluster 0-2 0
61 DescribeProducers 0 0; 64 UnregisterBroker 0 0; 65 DescribeTransactions 0 0
66 ListTransactions 0-2 0; 68 ConsumerGroupHeartbeat 0-1 0; 69 ConsumerGroupDescribe 0-1 0
71 GetTelemetrySubscriptions 0 0; 72 PushTelemetry 0 0; 74 ListConfigResources 0-1 0
75 DescribeTopicPartitions 0 0; 76 ShareGroupHeartbeat 1 0; 77 ShareGroupDescribe 1 0
78 ShareFetch 1-2 0; 79 ShareAcknowledge 1-2 0; 80 AddRaftVoter 0-1 0; 81 RemoveRaftVoter 0 0
83 InitializeShareGroupState 0 0; 84 ReadShareGroupState 0 0; 85 WriteShareGroupState 0-1 0
86 DeleteShareGroupState 0 0; 87 ReadShareGroupStateSummary 0-1 0
88 StreamsGroupHeartbeat 0-1 0; 89 StreamsGroupDescribe 0-1 0; 90 DescribeShareGroupOffsets 0-1 0
91 AlterShareGroupOffsets 0 0; 92 DeleteShareGroupOffsets 0 0
93 StreamsGroupTopologyDescriptionUpdate 0 0; 94 UnregisterController 0 0
"""
ROWS = [row.split() for row in TABLE.replace("\n", ";").split(";") if row.strip()]
FIELDS_OF_DICT = {"values"}


def fields_of(struct: Struct, path: str) -> list[tuple[str, Field, Struct]]:
    found = []
    for name, field in struct.fields.items():
        found.append((f"{path}.{name}", field, struct))
        element = field.element if isinstance(field, Array) else field
        if isinstance(element, Struct):
            found += fields_of(element, f"{path}.{name}")
    return found


EVERY_FIELD = [
    (api, path, field, parent)
    for api in BY_KEY.values()
    for message in (api.request, api.response)
    for path, field, parent in fields_of(message.struct, message.name)
]


def test_schemas_cover_seventy_nine_client_apis():
    assert len(BY_KEY) == len(ROWS) == 79


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[1])
def test_api_has_the_versions_of_kafka(row):
    key, name, run, flexible = row
    api = BY_KEY[int(key)]
    low, _, high = run.partition("-")
    assert (api.name, api.versions) == (name, (int(low), int(high or low)))
    first = [version for version in range(api.versions[1] + 1) if version in api.flexible][:1]
    assert first == ([] if flexible == "-" else [int(flexible)])


def test_every_version_of_kafka_4_3_has_a_schema():
    newest = BROKER_API_VERSIONS[max(BROKER_API_VERSIONS)]
    for key, (low, high) in newest.items():
        if key in BY_KEY and key != 0:
            assert BY_KEY[key].versions[0] <= low <= high <= BY_KEY[key].versions[1]
    assert newest[0][0] == 0, "Produce is advertised from 0 and refused below 3"


def test_every_version_of_kio_has_a_schema():
    for key, api in BY_KEY.items():
        known = schema_name_map[api_key_map[key]] if key in api_key_map else {}
        assert set(known) <= set(range(api.versions[0], api.versions[1] + 1))


def test_field_versions_are_within_the_versions_of_the_api():
    for api, path, field, _ in EVERY_FIELD:
        low, high = api.versions
        there = [version for version in range(low, high + 1) if version in field.versions]
        assert there, f"{path} is in no version"
        assert field.versions.low == 0 or field.versions.low >= low, path
        assert field.versions.high is None or field.versions.high <= high, path


def test_tags_are_unique_and_in_flexible_versions_only():
    for api, path, field, parent in EVERY_FIELD:
        if field.tag is None:
            continue
        tags = [other.tag for other in parent.fields.values() if other.tag is not None]
        assert tags.count(field.tag) == 1, path
        low, high = api.versions
        for version in range(low, high + 1):
            assert version not in field.versions or version in api.flexible, path


def test_null_default_requires_a_nullable_field():
    for api, path, field, _ in EVERY_FIELD:
        if field.default is None:
            low, high = api.versions
            assert any(version in field.nullable for version in range(low, high + 1)), path


def test_uuid_is_never_nullable():
    assert not any(
        isinstance(field, Uuid) and 0 in field.nullable for _, _, field, _ in EVERY_FIELD
    )


def test_fields_named_as_methods_of_dict_are_listed():
    names = {path.rpartition(".")[2] for _, path, _, _ in EVERY_FIELD}
    assert {name for name in names if hasattr(dict, name)} == FIELDS_OF_DICT


def test_duplicate_api_key_is_rejected():
    with pytest.raises(AssertionError, match="Second and ApiVersions have the same key 18"):
        Api(18, "Second", versions="0", request=Struct(), response=Struct())
    assert BY_KEY[18] is API_VERSIONS


@pytest.mark.parametrize(
    ("words", "inside", "outside"),
    [
        ("0+", [0, 99], [-1]),
        ("3", [3], [2, 4]),
        ("3-5", [3, 5], [2, 6]),
        ("7+", [7, 32767], [6]),
        ("none", [], [0, 1]),
    ],
)
def test_version_ranges_are_parsed_in_kafka_notation(words, inside, outside):
    assert all(version in versions_of(words) for version in inside)
    assert not any(version in versions_of(words) for version in outside)
