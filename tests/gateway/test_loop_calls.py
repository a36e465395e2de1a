"""Calls from other threads to the loop's thread."""

from __future__ import annotations

from kafkalite.clock import ManualClock
from kafkalite.gateway.loop_calls import LoopCalls
from kafkalite.transport.reactor import Reactor


def test_call_after_close_is_ignored():
    reactor, called = Reactor(ManualClock()), []
    calls = LoopCalls(reactor)
    calls.call_soon(lambda: called.append("before"))
    reactor.tick(0)
    calls.close()
    calls.call_soon(lambda: called.append("after"))
    reactor.tick(0)
    reactor.close()
    assert called == ["before"]
