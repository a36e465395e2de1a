"""A controller driven at random: after any decisions, three ways to restore it agree.

They are its records replayed through their bytes, its minimal records, and the controller itself.
The invariants are checked after every step.
"""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kafkalite.config.resources import Resource
from kafkalite.coordination.configs import ConfigAlteration, ConfigChange
from kafkalite.coordination.controller import Controller
from kafkalite.coordination.image import SUPERVISOR_ID, TopicImage
from kafkalite.coordination.placement import (
    PartitionMove,
    PlacementLimits,
    drain_moves,
    rebalance_moves,
)
from kafkalite.coordination.topics import DEFAULT, NewTopic, PartitionGrowth, TopicDefaults
from kafkalite.errors import InvalidRequest
from kafkalite.protocol.schemas import internal

NAMES = st.sampled_from(["a", "a.b", "b", "c", "a_b", "..", "__cluster_metadata"])
DEDICATED = {"worker.dedicated": "true"}
CONFIGS = st.sampled_from(
    [{}, {"retention.ms": "-1"}, DEDICATED, DEDICATED, {"segment.ms": "soon"}, {"no.such.key": "1"}]
)
NODE_IDS = st.integers(0, 7)
ASSIGNED_NODES = st.one_of(
    st.lists(NODE_IDS, max_size=1), NODE_IDS.map(lambda node_id: [node_id, node_id])
)
NEW_TOPICS = st.builds(
    NewTopic,
    NAMES,
    st.integers(-1, 9),
    st.sampled_from([1, -1, 1, 0, 9]),
    st.just(()),
    CONFIGS,
)
ASSIGNED_TOPICS = st.builds(
    NewTopic,
    NAMES,
    st.just(DEFAULT),
    st.just(DEFAULT),
    st.lists(st.tuples(st.integers(0, 2), ASSIGNED_NODES), max_size=3),
    CONFIGS,
)
GOOD_TOPICS = st.builds(
    NewTopic,
    st.sampled_from(["a", "b", "c", "d"]),
    st.integers(1, 9),
    st.just(1),
    st.just(()),
    st.sampled_from([{}, DEDICATED]),
)
GROWTHS = st.builds(
    PartitionGrowth,
    NAMES,
    st.integers(-1, 12),
    st.one_of(st.none(), st.lists(st.lists(NODE_IDS, max_size=2), max_size=3)),
)
CHANGES = st.builds(
    ConfigChange,
    st.sampled_from(["retention.ms", "cleanup.policy", "num.partitions", "metrics", "kafkalite"]),
    st.sampled_from([None, "1", "delete", "a,b", "INFO"]),
    st.integers(0, 4),
)
GOOD_ALTERATIONS = st.sampled_from(
    [
        ConfigAlteration(kind, name, [ConfigChange(key, text, 0 if text else 1)])
        for kind, name, key in [
            (Resource.BROKER, "", "num.partitions"),
            (Resource.BROKER, "1", "fetch.max.bytes"),
            (Resource.BROKER_LOGGER, "2", "kafkalite"),
            (Resource.CLIENT_METRICS, "s", "metrics"),
            (Resource.TOPIC, "a", "retention.ms"),
        ]
        for text in ("INFO" if kind is Resource.BROKER_LOGGER else "2000", None)
    ]
)
ANY_ALTERATIONS = st.builds(
    ConfigAlteration,
    st.sampled_from([*Resource, 3]),
    st.sampled_from(["", "0", "1", "2", "9", "a", "b", "c"]),
    st.lists(CHANGES, max_size=3),
    st.booleans(),
)
SIZES = st.dictionaries(st.integers(0, 12), st.integers(0, 100))
DEDICATED_MAX = 6
LIMITS = PlacementLimits(dedicated_max=DEDICATED_MAX)


def state(controller: Controller) -> Any:
    image = controller.image
    return (
        image.cluster_id,
        image.nodes,
        image.next_node_id,
        image.topics,
        image.topics_by_id,
        image.configs,
        {node_id: image.led_count(node_id) for node_id in range(image.next_node_id)},
        controller.producer_ids.next_id,
        controller._metric_names,
    )


def replayed(records: Any) -> Controller:
    controller = Controller()
    for record in records:
        controller.replay(record)
    return controller


class ControllerMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.controller = Controller()
        self.log: list[bytes] = []
        self.topic_ids = 0
        self.node_ids: set[int] = set()
        self.leaders: dict[tuple[bytes, int], tuple[int, int]] = {}

    @property
    def image(self) -> Any:
        return self.controller.image

    def do(self, result: Any, settled: Any = frozenset()) -> Any:
        """Replay a decision; a node that it adds has an id that was never used before."""
        before = {*self.image.nodes}
        for record in result.records:
            self.log.append(internal.write(record))
            self.controller.replay(record)
        made = self.image.nodes.keys() - before - settled
        assert not made & self.node_ids
        self.node_ids |= {*self.image.nodes}
        return result.response

    # -- nodes -------------------------------------------------------------------------------

    @initialize(
        workers=st.integers(0, 4),
        topics=st.lists(GOOD_TOPICS, min_size=1, max_size=4, unique_by=lambda new: new.name),
    )
    def found(self, workers: int, topics: list[NewTopic]) -> None:
        self.do(self.controller.set_cluster_id("a-cluster"))
        self.settle(workers, 1, None)
        self.create_topics(topics, False, {})

    @rule(workers=st.integers(0, 4), port=st.integers(1, 2), rack=st.sampled_from([None, "r"]))
    def settle(self, workers: int, port: int, rack: str | None) -> None:
        addresses = dict.fromkeys(range(workers + 1), ("localhost", port))
        racks = dict.fromkeys(addresses, rack)
        result = self.controller.register_nodes(addresses, racks, limits=LIMITS)
        self.do(result, settled=addresses.keys())
        if self.image.workers:
            ordinary = {n for n, node in self.image.nodes.items() if not node.dedicated}
            assert ordinary <= addresses.keys() <= self.image.nodes.keys()
        else:
            assert self.image.nodes.keys() == {0}

    @rule()
    def settle_unchanged(self) -> None:
        addresses = {node.node_id: (node.host, node.port) for node in self.image.nodes.values()}
        racks = {node.node_id: node.rack for node in self.image.nodes.values()}
        result = self.controller.register_nodes(addresses, racks, limits=LIMITS)
        # Topics that shared a worker may get their own.
        moved = [record for record in result.records if record.kind is internal.PARTITION]
        for record in moved:
            assert self.image.topics_by_id[record.fields["topic_id"]].dedicated
        self.do(result)

    @rule(located=st.booleans())
    def add_node(self, located: bool) -> None:
        node_id = self.do_unless_refused(lambda: self.controller.add_node())
        if located and node_id is not None:
            self.do(self.controller.set_node_address(node_id, "localhost", 1, None))

    @rule(data=st.data(), port=st.integers(0, 2))
    def set_node_address(self, data: st.DataObject, port: int) -> None:
        node_id = data.draw(self.any_node_id())
        self.do(self.controller.set_node_address(node_id, "localhost", port, None))

    @rule(racks=st.dictionaries(st.integers(0, 5), st.sampled_from([None, "r", "s"])))
    def set_racks(self, racks: dict[int, str | None]) -> None:
        self.do(self.controller.set_racks(racks))
        assert all(node.rack == racks.get(n) for n, node in self.image.nodes.items())

    @rule(data=st.data())
    def remove_node(self, data: st.DataObject) -> None:
        node_id = data.draw(self.any_node_id())
        self.do_unless_refused(lambda: self.controller.remove_node(node_id))

    @rule(data=st.data(), draining=st.booleans())
    def set_draining(self, data: st.DataObject, draining: bool) -> None:
        node_id = data.draw(self.any_node_id())
        self.do_unless_refused(lambda: self.controller.set_draining(node_id, draining))

    def any_node_id(self) -> st.SearchStrategy[int]:
        return st.sampled_from([*self.image.nodes, 99])

    def do_unless_refused(self, decide: Any) -> Any:
        try:
            return self.do(decide())
        except InvalidRequest:
            return None

    # -- moves -------------------------------------------------------------------------------

    @rule(data=st.data())
    def move(self, data: st.DataObject) -> None:
        places = [*self.leaders] or [(b"nobody's", 0)]
        wanted = st.builds(
            lambda place, from_node, to_node: PartitionMove(*place, from_node, to_node),
            st.sampled_from(places),
            self.any_node_id(),
            self.any_node_id(),
        )
        moves = data.draw(st.lists(wanted, max_size=20))
        for granted in self.do(self.controller.move(moves)):
            assert granted in moves
            assert granted.to_node in self.image.workers

    @precondition(lambda self: self.image.workers)
    @rule(data=st.data(), sizes=SIZES)
    def drain(self, data: st.DataObject, sizes: dict[int, int]) -> None:
        node_id = data.draw(st.sampled_from(self.image.workers))
        moves = drain_moves(self.image, node_id, self.measured(sizes))
        assert self.do(self.controller.move(moves)) == moves
        if set(self.image.placeable) - {node_id}:
            assert self.image.led_count(node_id) == 0

    @rule(data=st.data(), sizes=SIZES)
    def rebalance(self, data: st.DataObject, sizes: dict[int, int]) -> None:
        crowded = data.draw(st.sampled_from(self.image.placeable))
        leaders = {place: leader for place, (_, leader) in self.leaders.items()}
        self.do(self.controller.move([PartitionMove(*p, at, crowded) for p, at in leaders.items()]))
        moves = rebalance_moves(self.image, self.measured(sizes))
        assert self.do(self.controller.move(moves)) == moves
        counts = [self.image.led_count(node_id) for node_id in self.image.placeable]
        assert max(counts) - min(counts) <= 1
        assert rebalance_moves(self.image, {}) == []

    def measured(self, sizes: dict[int, int]) -> dict[tuple[bytes, int], int]:
        return {
            (topic_id, index): size + topic_id[-1]
            for topic_id in self.image.topics_by_id
            for index, size in sizes.items()
        }

    # -- configs -----------------------------------------------------------------------------

    @rule(
        wanted=st.lists(
            st.one_of(GOOD_ALTERATIONS, ANY_ALTERATIONS),
            max_size=4,
            unique_by=lambda wanted: wanted.resource,
        ),
        validate_only=st.booleans(),
    )
    def alter_configs(self, wanted: list[ConfigAlteration], validate_only: bool) -> None:
        before = {each.resource: self.set_on(*each.resource) for each in wanted}
        answers = self.do(self.controller.alter_configs(wanted, validate_only=validate_only))
        assert answers.keys() == before.keys()
        for resource, fault in answers.items():
            if fault is not None or validate_only:
                assert self.set_on(*resource) == before[resource]

    def set_on(self, kind: int, name: str) -> dict[str, str]:
        if kind == Resource.TOPIC and name not in self.image.topics:
            return {}
        return dict(self.image.config_of(kind, name))

    @invariant()
    def removed_nodes_have_no_configs(self) -> None:
        for kind, name in self.image.configs:
            if kind in (Resource.BROKER, Resource.BROKER_LOGGER) and name:
                assert int(name) in self.image.nodes

    # -- topics ------------------------------------------------------------------------------

    @rule(
        wanted=st.lists(
            st.one_of(NEW_TOPICS, NEW_TOPICS, ASSIGNED_TOPICS),
            max_size=3,
            unique_by=lambda new: new.name,
        ),
        validate_only=st.booleans(),
        sizes=SIZES,
    )
    def create_any_topics(
        self, wanted: list[NewTopic], validate_only: bool, sizes: dict[int, int]
    ) -> None:
        self.create_topics(wanted, validate_only, sizes)

    @rule(wanted=GOOD_TOPICS, sizes=SIZES)
    def create_a_topic(self, wanted: NewTopic, sizes: dict[int, int]) -> None:
        self.create_topics([wanted], False, sizes)

    def create_topics(
        self, wanted: list[NewTopic], validate_only: bool, sizes: dict[int, int]
    ) -> None:
        ids = []
        for _ in wanted:
            self.topic_ids += 1
            ids.append(self.topic_ids.to_bytes(16, "big"))
        placeable = self.image.placeable
        answers = self.do(
            self.controller.create_topics(
                wanted,
                ids,
                TopicDefaults(2, 1),
                sizes=self.measured(sizes),
                limits=LIMITS,
                validate_only=validate_only,
            )
        )
        topics = [each for each in answers.values() if isinstance(each, TopicImage)]
        for topic in () if validate_only else topics:
            for partition in topic.partitions.values():
                node = self.image.nodes[partition.leader]
                assert topic.dedicated if node.dedicated else node.node_id in placeable

    @rule(data=st.data())
    def delete_topics(self, data: st.DataObject) -> None:
        there = sorted(self.image.topics_by_id)
        if there:
            chosen = data.draw(st.lists(st.sampled_from(there), unique=True))
            names = {each: self.image.topics_by_id[each].name for each in chosen}
            self.do(self.controller.delete_topics(names))

    @rule(wanted=st.lists(GROWTHS, max_size=3, unique_by=lambda growth: growth.name))
    def create_partitions(self, wanted: list[PartitionGrowth]) -> None:
        self.do(self.controller.create_partitions(wanted, limits=LIMITS))

    @rule(node_id=st.integers(0, 3))
    def allocate_producer_ids(self, node_id: int) -> None:
        self.do(self.controller.allocate_producer_ids(node_id))

    # -- invariants --------------------------------------------------------------------------

    @invariant()
    def its_log_restores_it(self) -> None:
        again = replayed(internal.read(value) for value in self.log)
        assert state(again) == state(self.controller)

    @invariant()
    def its_snapshot_records_restore_it(self) -> None:
        assert state(replayed(self.controller.records())) == state(self.controller)

    @invariant()
    def every_partition_has_one_valid_leader(self) -> None:
        image = self.image
        for topic in image.topics.values():
            assert [*topic.partitions] == [*range(len(topic.partitions))]
            for partition in topic.partitions.values():
                assert partition.replicas == partition.isr == (partition.leader,)
                node = image.nodes[partition.leader]
                assert (node.node_id == SUPERVISOR_ID) == (not image.workers)
                assert not node.dedicated or (
                    topic.dedicated and image.led_count(node.node_id) == 1
                )

    @invariant()
    def leaders_change_only_with_a_higher_epoch(self) -> None:
        now = {
            (topic.topic_id, index): (partition.leader_epoch, partition.leader)
            for topic in self.image.topics.values()
            for index, partition in topic.partitions.items()
        }
        for place, (epoch, leader) in now.items():
            old_epoch, old_leader = self.leaders.get(place, (epoch, leader))
            assert leader == old_leader if epoch == old_epoch else epoch > old_epoch
        self.leaders = now

    @invariant()
    def led_partitions_are_counted(self) -> None:
        leaders = [
            partition.leader
            for topic in self.image.topics.values()
            for partition in topic.partitions.values()
        ]
        for node_id in range(self.image.next_node_id):
            assert self.image.led_count(node_id) == leaders.count(node_id)

    @invariant()
    def replicas_are_found_by_node(self) -> None:
        image = self.image
        for node_id in range(image.next_node_id):
            found = {(topic.name, index) for topic, index, _ in image.replicas_on(node_id)}
            assert found == {
                (topic.name, index)
                for topic in image.topics.values()
                for index, partition in topic.partitions.items()
                if node_id in partition.replicas
            }

    @invariant()
    def dedicated_nodes_lead_their_partitions(self) -> None:
        dedicated = [node.node_id for node in self.image.nodes.values() if node.dedicated]
        assert all(self.image.led_count(node_id) == 1 for node_id in dedicated)
        assert len(dedicated) <= DEDICATED_MAX

    @invariant()
    def some_node_takes_partitions(self) -> None:
        if self.image.nodes:
            assert self.image.placeable
            assert {*self.image.placeable} <= self.image.nodes.keys()


TestController = ControllerMachine.TestCase
TestController.settings = settings(max_examples=80, stateful_step_count=30, deadline=None)
