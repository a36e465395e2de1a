"""A Producer and its process: exit, forked children, Ctrl-C, and imports."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import time
from collections import Counter

import pytest

from kafkalite.testing import Broker
from tests.client.reading_back import read_back


@pytest.fixture(scope="module", params=[0, 2], ids=["one process", "two workers"])
def broker(request):
    with Broker(workers=request.param) as made:
        yield made


@pytest.fixture(params=["auto", "off"], ids=["ring", "tcp"])
def native(request):
    return request.param


def run(code: str, *arguments: str, timeout_s: float = 60) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *arguments],
        capture_output=True, text=True, timeout=timeout_s,
    )  # fmt: skip


def test_exit_without_close_delivers_all_records(broker, native):
    topic = broker.topic()
    ended = run(
        """
        import sys
        from kafkalite import Producer
        producer = Producer(sys.argv[1], native=sys.argv[3], linger_ms=1000)
        for number in range(1000):
            producer.send(sys.argv[2], b"%d" % number)
        """,
        broker.bootstrap, topic, native,
    )  # fmt: skip
    assert (ended.returncode, ended.stderr) == (0, "")
    assert [each.value() for each in read_back(broker, topic)] == [b"%d" % n for n in range(1_000)]


def test_forked_child_keeps_no_ring():
    sizes = {"native.ring.bytes": "65536", "native.rings.bytes.max": "65536"}
    with Broker(config=sizes) as one:
        ended = run(
            """
            import os, sys, time
            from kafkalite import Producer
            first = Producer(sys.argv[1])
            first.send(sys.argv[2], b"x").result(30)
            assert first.metrics()["rings"] == 1
            ours, childs = os.pipe()
            child = os.fork()
            if child == 0:
                os.close(childs)
                os.read(ours, 1)
                os._exit(0)
            os.close(ours)
            first.close()
            with Producer(sys.argv[1]) as second:
                end = time.monotonic() + 15
                while not second.metrics()["rings"] and time.monotonic() < end:
                    second.send(sys.argv[2], b"y").result(30)
                    time.sleep(0.01)
                print(second.metrics()["rings"])
            os.close(childs)
            os.waitpid(child, 0)
            """,
            one.bootstrap, one.topic(),
        )  # fmt: skip
        assert ended.returncode == 0, ended.stderr
        assert ended.stdout.strip() == "1"


def test_exit_without_a_broker_reports_lost_records(native):
    with Broker() as broker:
        topic = broker.topic()
        started = time.monotonic()
        ended = run(
            """
            import os, signal, sys
            from kafkalite import Producer
            producer = Producer(sys.argv[1], native=sys.argv[3])
            producer.send(sys.argv[2], b"x").result(30)
            os.killpg(int(sys.argv[4]), signal.SIGKILL)
            producer.send(sys.argv[2], b"y")
            """,
            broker.bootstrap, topic, native, str(broker.pid),
        )  # fmt: skip
        assert ended.returncode == 0
        (line,) = [line for line in ended.stderr.splitlines() if "not delivered" in line]
        assert (
            "The program exited before a response arrived, because the producer was not closed."
            in line
        )
        assert f"topic={topic} partition=0 records=1 batches=1" in line
        assert time.monotonic() - started < 40


def test_forked_child_must_create_its_own_producer(broker, native):
    topic = broker.topic()
    ended = run(
        """
        import os, sys
        from kafkalite import Producer
        producer = Producer(sys.argv[1], native=sys.argv[3])
        producer.send(sys.argv[2], b"before").result(30)
        child = os.fork()
        if child == 0:
            for call in (lambda: producer.send(sys.argv[2], b"x"), producer.flush):
                try:
                    call()
                except RuntimeError as fault:
                    print(fault, flush=True)
            with Producer(sys.argv[1], native=sys.argv[3]) as own:
                own.send(sys.argv[2], b"child").result(30)
            sys.exit()
        os.waitpid(child, 0)
        producer.send(sys.argv[2], b"parent").result(30)
        producer.close()
        """,
        broker.bootstrap, topic, native,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count("cannot be used after a fork") == 2
    values = [each.value() for each in read_back(broker, topic)]
    assert sorted(values) == [b"before", b"child", b"parent"]


def test_ctrl_c_in_result_ends_the_wait_and_loses_no_record(native):
    with Broker() as broker:
        topic = broker.topic()
        ended = run(
            """
            import os, signal, sys, threading, time
            from kafkalite import Producer
            pid = int(sys.argv[4])
            producer = Producer(sys.argv[1], native=sys.argv[3])
            producer.send(sys.argv[2], b"0").result(30)
            os.killpg(pid, signal.SIGSTOP)
            sent = producer.send(sys.argv[2], b"1")
            threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
            try:
                sent.result(30)
                print("no interrupt")
            except KeyboardInterrupt:
                print("interrupted")
            os.killpg(pid, signal.SIGCONT)
            print(sent.result(30).offset, producer.send(sys.argv[2], b"2").result(30).offset)
            producer.close()
            """,
            broker.bootstrap, topic, native, str(broker.pid),
        )  # fmt: skip
        assert ended.returncode == 0, ended.stderr
        assert ended.stdout.split() == ["interrupted", "1", "2"]
        assert [each.value() for each in read_back(broker, topic)] == [b"0", b"1", b"2"]


def test_ctrl_c_at_any_moment_neither_loses_nor_duplicates_a_record(broker, native):
    topic = broker.topic()
    ended = run(
        """
        import signal, sys
        from collections import Counter
        from kafkalite import Producer
        producer = Producer(sys.argv[1], native=sys.argv[3], batch_size=500)
        producer.send(sys.argv[2], b"0").result(30)
        interrupts, sent, armed = 0, [], False

        def interrupt(*_):
            global armed
            if armed:
                armed = False
                raise KeyboardInterrupt

        signal.signal(signal.SIGALRM, interrupt)
        signal.setitimer(signal.ITIMER_REAL, 0.01, 0.0031)
        while interrupts < 300:
            try:
                armed = True
                sent.append(producer.send(sys.argv[2], b"%d" % len(sent)))
                if len(sent) % 50 == 0:
                    sent[-1].result(30)
                armed = False
            except KeyboardInterrupt:
                interrupts += 1
        signal.setitimer(signal.ITIMER_REAL, 0)
        producer.close()
        kept = [each for each in sent if each.exception(0) is None]
        offsets = Counter(each.result(0).offset for each in kept)
        print({repr(each.exception(0)) for each in sent} - {"None"}, file=sys.stderr)
        print([each for each in offsets.items() if each[1] > 1], file=sys.stderr)
        print(interrupts, len(sent), len(kept), len(offsets))
        """,
        broker.bootstrap, topic, native,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    interrupts, sent, kept, places = map(int, ended.stdout.split())
    assert interrupts == 300
    assert sent == kept, ended.stderr
    assert kept == places, ended.stderr
    values = [each.value() for each in read_back(broker, topic)]
    # An interrupted send may have accepted its record without returning a delivery.
    assert Counter(values[1:]) >= Counter(b"%d" % number for number in range(sent))
    assert len(values) - 1 - sent <= interrupts


def test_producer_imports_neither_pyarrow_nor_asyncio():
    ended = run("import sys, kafkalite; kafkalite.Producer; print(*sys.modules)")
    assert ended.returncode == 0, ended.stderr
    assert not {"pyarrow", "asyncio", "numpy", "confluent_kafka"} & set(ended.stdout.split())
