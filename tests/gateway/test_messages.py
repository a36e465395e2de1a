"""Messages of a sender, and their outcomes."""

import time

import pytest
import zmq
from kafka.partitioner.default import murmur2

from kafkalite.errors import UnknownTopicOrPartition
from tests.gateway.frames import headers, keyed_pack, pack
from tests.gateway.serving import MemorySender
from tests.process.waiting import until


@pytest.fixture
def make_send(start_gateway, peers):
    """A function that sends messages as a DEALER, numbered; it returns the responses without."""

    def make(*args, **keys):
        gateway = start_gateway(*args, **keys)
        dealer = peers(zmq.DEALER, gateway.dealer)

        def send(*messages):
            for number, frames in enumerate(messages):
                dealer.send_multipart([b"%d" % number, *frames])
            responses = [dealer.recv_multipart() for _ in messages]
            found = {int(which): rest for which, *rest in responses}
            assert len(found) == len(messages)
            return [
                (int(code), int(partition), int(offset), sentence.decode())
                for _, (code, partition, offset, sentence) in sorted(found.items())
            ]

        send.gateway, send.sender = gateway, gateway.sender
        return send

    return make


def test_push_of_three_frames_is_a_record(start_gateway, peers):
    gateway = start_gateway()
    push = peers(zmq.PUSH, gateway.push)
    before_ms = time.time_ns() // 1_000_000
    push.send_multipart([b"sensors", b"", b"21.5"])
    push.send_multipart([b"sensors", b"attic", b""])
    until(lambda: len(gateway.sender.logs["sensors", 0]) == 2)
    first, second = gateway.sender.logs["sensors", 0]
    assert (first.key, first.value, first.headers) == (None, b"21.5", ())
    assert (second.key, second.value) == (b"attic", b"")
    assert before_ms <= first.timestamp <= time.time_ns() // 1_000_000


def test_dealer_response_names_partition_and_offset(make_send):
    send = make_send()
    send.sender.partitions["sensors"] = 3
    responses = send(*([b"sensors", b"", b"%d" % number, b"", b"", b"2"] for number in range(5)))
    assert responses == [(0, 2, offset, "") for offset in range(5)]
    assert [row.value for row in send.sender.logs["sensors", 2]] == [b"0", b"1", b"2", b"3", b"4"]
    assert send.gateway.metrics.responses == 5


def test_correlation_id_may_be_any_bytes(start_gateway, peers):
    gateway = start_gateway()
    dealer = peers(zmq.DEALER, gateway.dealer)
    for correlation in (b"", b"\0\xff" * 300, b"KLV1"):
        dealer.send_multipart([correlation, b"sensors", b"", b"1"])
        assert dealer.recv_multipart()[:3] == [correlation, b"0", b"0"]


def test_req_socket_is_served_as_a_dealer(start_gateway, peers):
    gateway = start_gateway()
    request = peers(zmq.REQ, gateway.dealer)
    for offset in range(3):
        request.send_multipart([b"sensors", b"", b"21.5"])
        assert request.recv_multipart() == [b"0", b"0", b"%d" % offset, b""]


def test_message_may_have_headers_timestamp_and_partition(make_send):
    send = make_send()
    send.sender.partitions["sensors"] = 2
    by_key = (murmur2(b"k1") & 0x7FFFFFFF) % 2
    assert by_key == 1
    put = headers((b"unit", b"C"), (b"unit", None), ("größe".encode(), b""))
    assert send(
        [b"sensors", b"k0", b"v", put, b"1234", b"1"],
        [b"sensors", b"k1", b"v", put],
        [b"sensors", b"k1", b"v", b"", b"0"],
        [b"sensors", b"k1", b"v", b"", b"", b""],
    ) == [(0, 1, 0, ""), *((0, by_key, offset, "") for offset in (1, 2, 3))]
    row = send.sender.logs["sensors", 1][0]
    assert row.headers == (("unit", b"C"), ("unit", None), ("größe", b""))
    assert row.timestamp == 1234


def test_key_selects_the_partition_of_kafka_clients(make_send):
    send = make_send()
    send.sender.partitions["sensors"] = 7
    keys = [b"k" * size + b"%d" % size for size in range(40)]
    responses = send(*([b"sensors", key, key] for key in keys))
    expected = [(murmur2(key) & 0x7FFFFFFF) % 7 for key in keys]
    assert [partition for _, partition, *_ in responses] == expected
    for partition in range(7):
        values = [row.value for row in send.sender.logs["sensors", partition]]
        assert values == [key for key, place in zip(keys, expected, strict=True)
                          if place == partition]  # fmt: skip


def test_messages_without_key_fill_a_batch_per_partition(make_send):
    send = make_send(gateway_batch_size=1024)
    send.sender.partitions["sensors"] = 4
    send(*([b"sensors", b"", b"v" * 100] for _ in range(100)))
    counts = [len(send.sender.logs["sensors", partition]) for partition in range(4)]
    assert sum(counts) == 100 and min(counts) >= 15


def test_packed_message_is_many_records_in_order(make_send):
    send = make_send()
    values = [b"%d" % number for number in range(1000)]
    assert send([b"sensors", pack(*values)]) == [(0, 0, 0, "")]
    assert send.sender.values("sensors") == values
    assert send([b"sensors", pack(b"", b"x")]) == [(0, 0, 1000, "")]


def test_packed_message_above_batch_size_has_one_response(make_send):
    send = make_send(gateway_batch_size=1024)
    send([b"sensors", b"", b"before"])
    values = [b"v" * 90 + b"%d" % number for number in range(500)]
    assert send([b"sensors", pack(*values)], [b"sensors", b"", b"after"])[0] == (0, 0, 1, "")
    assert send.sender.values("sensors")[1:501] == values


def test_packed_message_with_keys_has_one_response(make_send):
    send = make_send()
    send.sender.partitions["sensors"] = 5
    entries = [(b"k%d" % number, b"%d" % number) for number in range(100)]
    assert send([b"sensors", keyed_pack(*entries)]) == [(0, -1, -1, "")]
    assert sorted(send.sender.values("sensors")) == sorted(value for _, value in entries)
    assert send([b"sensors", keyed_pack((b"k1", b"one"))])[0][1] == (
        (murmur2(b"k1") & 0x7FFFFFFF) % 5
    )
    send([b"sensors", keyed_pack((b"", b"no key"))])
    assert [row.key for log in send.sender.logs.values() for row in log if row.value == b"no key"
            ] == [None]  # fmt: skip


INVALID = {
    "no frame at all": ([], 42, "3 to 6 frames"),
    "a topic alone": ([b"sensors"], 42, "3 to 6 frames"),
    "a missing key": ([b"sensors", b"21.5"], 42, "not a valid pack"),
    "seven frames": ([b"sensors"] + [b""] * 6, 42, "3 to 6 frames"),
    "a hundred frames": ([b"sensors"] * 100, 42, "3 to 6 frames"),
    "an empty pack": ([b"sensors", b"KLV1"], 42, "not a valid pack"),
    "a pack cut short": ([b"sensors", pack(b"abc")[:-1]], 42, "not a valid pack"),
    "a pack and a byte": ([b"sensors", pack(b"abc") + b"\0"], 42, "not a valid pack"),
    "a pack of 4 GB": ([b"sensors", b"KLV1\xff\xff\xff\xff"], 42, "not a valid pack"),
    "a key without a value": ([b"sensors", b"KLK1\0\0\0\1k"], 42, "not a valid pack"),
    "headers cut short": ([b"sensors", b"", b"v", headers((b"a", b"b"))[:-1]], 42, "headers"),
    "a header without a value": ([b"sensors", b"", b"v", b"\0\0\0\1a"], 42, "headers"),
    "a header with a null name": (
        [b"sensors", b"", b"v", b"\xff\xff\xff\xff\0\0\0\0"], 42, "headers",
    ),
    "a timestamp with a sign": ([b"sensors", b"", b"v", b"", b"-1"], 42, "timestamp"),
    "a timestamp of 19 digits": ([b"sensors", b"", b"v", b"", b"1" * 19], 42, "timestamp"),
    "a partition in bytes": ([b"sensors", b"", b"v", b"", b"", b"\0\0\0\1"], 42, "partition"),
    "an unknown partition": ([b"sensors", b"", b"v", b"", b"", b"1"], 3, "no such partition"),
    "a far partition": ([b"sensors", b"", b"v", b"", b"", b"9" * 18], 3, "no such partition"),
    "a topic with a slash": ([b"a/b", b"", b"v"], 17, "valid topic name"),
    "no topic": ([b"", b"", b"v"], 17, "valid topic name"),
    "a topic of any bytes": ([b"\xff\n", b"", b"v"], 17, "valid topic name"),
    "a topic of 250 letters": ([b"a" * 250, b"", b"v"], 17, "valid topic name"),
    "a topic that is not created": ([b"missing", b"", b"v"], 3, "does not know"),
    "a value too large": ([b"sensors", b"", bytes(1 << 20)], 10, "larger"),
    "a key too large": ([b"sensors", bytes(1 << 20), b""], 10, "larger"),
    "a pack with one too large": ([b"sensors", pack(b"a", bytes((1 << 20) - 1040))], 10, "larger"),
}  # fmt: skip


@pytest.fixture
def sender():
    """A broker that does not create one topic."""
    sender = MemorySender()
    sender.lookup_errors["missing"] = UnknownTopicOrPartition("This server does not know it.")
    return sender


@pytest.mark.parametrize("frames, code, words", INVALID.values(), ids=INVALID)
def test_invalid_dealer_message_gets_an_error_response(make_send, sender, frames, code, words):
    send = make_send(sender)
    wrong, right = send(frames, [b"sensors", b"", b"21.5"])
    assert (wrong[:3], right) == ((code, -1, -1), (0, 0, 0, ""))
    assert words in wrong[3] or code == 3
    assert send.sender.values("sensors") == [b"21.5"]
    assert sum(send.gateway.metrics.refused.values()) == 1


@pytest.mark.parametrize(
    "frames",
    [frames for frames, *_ in INVALID.values() if frames],
    ids=[name for name, (frames, *_) in INVALID.items() if frames],
)
def test_invalid_push_message_is_counted_and_logged_once(
    start_gateway, peers, sender, caplog, frames
):
    gateway = start_gateway(sender)
    push = peers(zmq.PUSH, gateway.push)
    for _ in range(20):
        push.send_multipart(frames)
    push.send_multipart([b"sensors", b"", b"21.5"])
    until(lambda: sum(gateway.metrics.refused.values()) == 20)
    until(lambda: gateway.sender.values("sensors") == [b"21.5"])
    said = [record for record in caplog.records if "was refused" in record.getMessage()]
    assert len(said) == 1 and "to push for topic" in said[0].getMessage()


def test_dealer_message_of_one_frame_gets_a_response(start_gateway, peers):
    gateway = start_gateway()
    dealer = peers(zmq.DEALER, gateway.dealer)
    dealer.send(b"hello")
    assert dealer.recv_multipart()[:2] == [b"hello", b"42"]


def test_each_message_of_several_dealers_gets_one_response(start_gateway, peers):
    gateway = start_gateway()
    gateway.sender.partitions["sensors"] = 3
    dealers = [peers(zmq.DEALER, gateway.dealer, SNDHWM=0, RCVHWM=0) for _ in range(4)]
    count = 2_000
    send = [{} for _ in dealers]
    for number in range(count):
        for dealer in dealers:
            dealer.send_multipart([b"%d" % number, b"sensors", b"%d" % number, b"v"])
        for dealer, responses in zip(dealers, send, strict=True):
            while dealer.poll(0):
                take(dealer, responses)
    for dealer, responses in zip(dealers, send, strict=True):
        while len(responses) < count:
            take(dealer, responses)
    places = {place for responses in send for place in responses.values()}
    assert len(places) == 4 * count
    assert sum(len(log) for log in gateway.sender.logs.values()) == 4 * count


def take(dealer, responses):
    number, code, partition, offset, _ = dealer.recv_multipart()
    assert code == b"0" and int(number) not in responses
    responses[int(number)] = (int(partition), int(offset))
