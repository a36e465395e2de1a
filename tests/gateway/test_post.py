"""Calls that other threads post to the loop's thread."""

from __future__ import annotations

from kafkalite.clock import ManualClock
from kafkalite.gateway.post import Post
from kafkalite.transport.reactor import Reactor


def test_what_is_left_after_the_end_is_left_in_vain():
    reactor, called = Reactor(ManualClock()), []
    post = Post(reactor)
    post.leave(lambda: called.append("before"))
    reactor.tick(0)
    post.close()
    post.leave(lambda: called.append("after"))
    reactor.tick(0)
    reactor.close()
    assert called == ["before"]
