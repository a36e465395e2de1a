"""The compiled receiver gathers what its twin in plain Python reads, for any frames."""

from collections import Counter, deque

import pytest
import zmq
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kafkalite._ext import records
from kafkalite._ext.gateway_receiver import MessageGatherer, MessageReceiver, Topic
from kafkalite.gateway.zmq_socket import LIBRARY
from tests.gateway.frames import headers, keyed_pack, pack
from tests.twins import gateway_receiver as twin

RECORD_SIZE_MAX = 300
NOW_MS = 1_000_000

SMALL = st.binary(max_size=40)
TEXT = st.sampled_from([b"", b"0", b"1", b"2", b"9", b"12", b"-1", b"x", b"1" * 18, b"1" * 19])
PAIRS = st.lists(st.tuples(SMALL, st.none() | SMALL), max_size=3)
PLAIN = st.tuples(
    st.binary(max_size=320), st.binary(max_size=320),
    PAIRS.map(lambda pairs: headers(*pairs)), TEXT, TEXT,
)  # fmt: skip
ONE = st.integers(2, 5).flatmap(lambda count: PLAIN.map(lambda frames: list(frames[:count])))
PACKED = st.lists(SMALL | st.binary(min_size=250, max_size=300), max_size=8).map(
    lambda values: [pack(*values)]
) | st.lists(st.tuples(SMALL, SMALL), max_size=8).map(lambda entries: [keyed_pack(*entries)])


@st.composite
def damaged(draw):
    """A valid message, one of whose frames has a byte changed, or is cut short, or longer."""
    frames = list(draw(ONE | PACKED))
    place = draw(st.integers(0, len(frames) - 1))
    frame = bytearray(frames[place])
    if frame and draw(st.booleans()):
        frame[draw(st.integers(0, len(frame) - 1))] ^= draw(st.integers(1, 255))
    elif frame and draw(st.booleans()):
        del frame[draw(st.integers(0, len(frame) - 1)) :]
    else:
        frame += draw(st.binary(min_size=1, max_size=5))
    frames[place] = bytes(frame)
    return frames


WILD = st.lists(SMALL, max_size=9)
MESSAGES = st.lists(ONE | PACKED | damaged() | WILD, min_size=1, max_size=20)


class Wired:
    """A receiver, and the socket of its sender."""

    def __init__(self):
        self.context = zmq.Context()
        self.pull = self.context.socket(zmq.PULL)
        self.pull.bind("inproc://receiver")
        self.push = self.context.socket(zmq.PUSH)
        self.push.connect("inproc://receiver")
        self.refused = []

    def gather(self, messages, partitions, batch_size):
        """Return a code or None for each message, and the batches."""
        codes = []
        gathering = MessageGatherer(
            batch_size, RECORD_SIZE_MAX, self.ask, lambda *told: self.refused.append(told)
        )
        topic = Topic("t")
        gathering.topics[b"t"] = topic
        gathering.set_partitions(topic, partitions, 0, NOW_MS)
        receiver = MessageReceiver(gathering, self.pull.underlying, LIBRARY, False, 1 << 20)
        for frames in messages:
            self.push.send_multipart([b"t", *frames])
            assert receiver.receive(1, 1 << 20, NOW_MS) is False
            codes.append(self.refused.pop()[2] if self.refused else None)
            assert not self.refused
        assert receiver.receive(1, 1 << 20, NOW_MS) is True
        assert receiver.message_count == len(messages)
        assert gathering.close_older(NOW_MS) == -1 and gathering.open_size == 0
        return codes, gathering.closed

    def ask(self, name):
        raise AssertionError("the topic is known")

    def close(self):
        self.push.close(0)
        self.pull.close(0)
        self.context.term()


@pytest.fixture(scope="module")
def wired():
    made = Wired()
    yield made
    made.close()


@settings(max_examples=300, deadline=None)
@example(messages=[[b"", b""], [b"", b"", b"", b"", b"0"]], partitions=1, batch_size=1)
@given(messages=MESSAGES, partitions=st.integers(1, 4), batch_size=st.sampled_from([1, 200, 4096]))
def test_gathered_records_equal_the_twin(wired, messages, partitions, batch_size):
    codes, batches = wired.gather(messages, partitions, batch_size)
    placed = {partition: [] for partition in range(partitions)}
    keyless = []
    for frames, code in zip(messages, codes, strict=True):
        read = twin.read(frames, partitions, RECORD_SIZE_MAX)
        if isinstance(read, int):
            assert code == read
            continue
        assert code is None
        for partition, key, value, named, timestamp in read:
            record = (key, value, named, NOW_MS if timestamp is None else timestamp)
            (keyless if partition is None else placed[partition]).append(record)
    found = {partition: [] for partition in range(partitions)}
    for batch in batches:
        found[batch.partition] += decoded(batch, batch_size)
    # A record without a partition may be equal to one that names it.
    rest = Counter()
    for partition, records_found in found.items():
        awaited = deque(placed[partition])
        for record in records_found:
            if awaited and record == awaited[0]:
                awaited.popleft()
            else:
                rest[repr(record)] += 1
        assert not awaited
    assert rest == Counter(map(repr, keyless))


def decoded(batch, batch_size):
    """Decode a batch's records and check its header fields against them."""
    rows = records.decode(bytes(batch.content[61 : 61 + batch.size]), batch.count)
    assert isinstance(rows, list), "it is no batch"
    assert [row[0] for row in rows] == list(range(batch.count))
    assert batch.size <= batch_size or batch.count == 1
    times = [batch.base_timestamp + row[1] for row in rows]
    assert times[0] == batch.base_timestamp and max(times) == batch.max_timestamp
    return [(key, value, named, at) for (_, _, key, value, named), at in
            zip(rows, times, strict=True)]  # fmt: skip
