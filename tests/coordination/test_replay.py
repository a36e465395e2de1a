"""A controller driven at random: after any decisions, three ways of making it again agree.

Its records replayed through their bytes, its fewest records, and itself.
"""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from kafkalite.coordination.controller import Controller, Defaults, Growth, NewTopic
from kafkalite.coordination.image import NodeImage
from kafkalite.protocol.schemas import internal

NAMES = st.sampled_from(["a", "a.b", "a_b", "b", "..", "__cluster_metadata"])
CONFIGS = st.dictionaries(
    st.sampled_from(["retention.ms", "segment.bytes", "no.such.key"]),
    st.sampled_from(["-1", "1048576", "soon", None]),
)
NEW_TOPICS = st.builds(
    NewTopic,
    NAMES,
    st.integers(-2, 4),
    st.integers(-2, 3),
    assignments=st.one_of(
        st.just([]),
        st.lists(st.tuples(st.integers(0, 3), st.lists(st.integers(0, 3), max_size=3))),
    ),
    config=CONFIGS,
)
GROWTHS = st.builds(
    Growth,
    NAMES,
    st.integers(-1, 6),
    st.one_of(st.none(), st.lists(st.lists(st.integers(0, 3), max_size=3), max_size=3)),
)


def state(controller: Controller) -> Any:
    image = controller.image
    return (
        image.cluster_id,
        image.nodes,
        image.topics,
        image.topics_by_id,
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

    def do(self, result: Any) -> Any:
        for record in result.records:
            self.log.append(internal.write(record))
            self.controller.replay(record)
        return result.response

    @rule()
    def found(self) -> None:
        self.do(self.controller.found("a-cluster"))

    @rule(node_id=st.integers(0, 3), port=st.integers(1, 3), rack=st.sampled_from([None, "r"]))
    def register_node(self, node_id: int, port: int, rack: str | None) -> None:
        self.do(self.controller.register_node(NodeImage(node_id, "localhost", port, rack)))

    @rule(
        wanted=st.lists(NEW_TOPICS, max_size=3, unique_by=lambda new: new.name),
        validate_only=st.booleans(),
    )
    def create_topics(self, wanted: list[NewTopic], validate_only: bool) -> None:
        ids = []
        for _ in wanted:
            self.topic_ids += 1
            ids.append(self.topic_ids.to_bytes(16, "big"))
        self.do(
            self.controller.create_topics(wanted, ids, Defaults(2, 1), validate_only=validate_only)
        )

    @rule(data=st.data())
    def delete_topics(self, data: st.DataObject) -> None:
        there = sorted(self.controller.image.topics_by_id)
        if there:
            chosen = data.draw(st.lists(st.sampled_from(there), unique=True))
            self.do(self.controller.delete_topics(chosen))

    @rule(wanted=st.lists(GROWTHS, max_size=3, unique_by=lambda growth: growth.name))
    def create_partitions(self, wanted: list[Growth]) -> None:
        self.do(self.controller.create_partitions(wanted))

    @rule(node_id=st.integers(0, 3))
    def allocate_producer_ids(self, node_id: int) -> None:
        self.do(self.controller.allocate_producer_ids(node_id))

    @invariant()
    def its_log_makes_it_again(self) -> None:
        again = replayed(internal.read(value) for value in self.log)
        assert state(again) == state(self.controller)

    @invariant()
    def its_fewest_records_make_it_again(self) -> None:
        assert state(replayed(self.controller.records())) == state(self.controller)

    @invariant()
    def partitions_have_no_gap_and_live_on_nodes_that_are_there(self) -> None:
        for topic in self.controller.image.topics.values():
            assert [*topic.partitions] == [*range(len(topic.partitions))]
            for partition in topic.partitions.values():
                assert set(partition.replicas) <= self.controller.image.nodes.keys()
                assert partition.leader in partition.isr


TestController = ControllerMachine.TestCase
TestController.settings = settings(max_examples=60, stateful_step_count=20, deadline=None)
