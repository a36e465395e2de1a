"""Bounds on the requests of one connection that wait for their responses."""

import struct

from kafkalite.clock import ManualClock

MIB = 1 << 20
FETCH, PRODUCE = 1, 0


def request(api_key, size):
    return struct.pack(">h", api_key) + bytes(size - 2)


def test_requests_in_flight_are_bounded(world):
    answers = []

    def serve(connection, frame):
        answers.append(connection.defer())
        return answers[-1]

    here = world(serve, in_flight_max=10)
    client = here.client().request(*[b"%d" % number for number in range(100)])
    here.quiet()
    assert len(answers) == 10
    for served in range(100):
        here.until(lambda served=served: len(answers) > served)
        answers[served].send([b"%d" % served])
        assert client.response() == b"%d" % served
    assert len(answers) == 100


def test_large_requests_are_handled_one_by_one(world):
    """Decoded requests take a multiple of their bytes for as long as they wait."""
    large, small = [], []

    def serve(connection, frame):
        (large if len(frame) > 100 else small).append(connection.defer())
        return (large if len(frame) > 100 else small)[-1]

    here = world(serve)
    here.client().request(*[request(FETCH, 100)] * 90)
    client = here.client().request(*[request(FETCH, 100_000)] * 3, *[request(FETCH, 100)] * 9)
    here.until(lambda: (len(large), len(small)) == (1, 90))
    for number in range(3):
        here.quiet()
        assert (len(large), len(small)) == (number + 1, 90)
        large[number].send([b"large"])
        assert client.response() == b"large"
    here.until(lambda: len(small) == 99)


def test_large_produce_requests_are_handled_together(world):
    deferred = []

    def serve(connection, frame):
        deferred.append(connection.defer())
        return deferred[-1]

    here = world(serve)
    here.client().request(*[request(PRODUCE, 1 * MIB)] * 5)
    here.until(lambda: len(deferred) == 5)


def test_closed_connection_with_all_its_requests_waiting_is_closed_as_idle(world):
    """It is not read while so many wait, and its end is noticed only by reading."""
    abandoned = []

    def serve(connection, frame):
        response = connection.defer()
        response.abandoned = lambda: abandoned.append(1)
        return response

    clock = ManualClock()
    here = world(serve, clock=clock, idle_ms_max=60_000, in_flight_max=10)
    gone, waiting = here.client(), here.client()
    for client in gone, waiting:
        client.request(*[b"request"] * 10)
    here.quiet()
    gone.close()
    here.connected(2)
    for _ in range(16):
        clock.advance(5_000)
        here.quiet()
    assert len(abandoned) == 10
    assert len(here.reactor.connections) == 1
