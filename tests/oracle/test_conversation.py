"""Records of responses: equal for two correct brokers."""

from __future__ import annotations

from kafkalite.protocol.types import Array, Int32, Struct
from tests.oracle.conversation import Conversation, kept, veiled, without_own_fields

TOPICS = {"brokers": [{"node_id": 0}], "topics": [{"name": "a", "error_code": 0}, {"name": "b"}]}


def test_conversation_keeps_only_named_entries():
    assert kept(TOPICS, "a") == {**TOPICS, "topics": [{"name": "a", "error_code": 0}]}


def test_masked_value_stays_visible_as_present():
    told = {"results": [{"log_dir": "/somewhere", "size": 7, "usable": -1}]}
    shown = {"results": [{"log_dir": "told", "size": 7, "usable": -1}]}
    assert veiled(told, ("log_dir", "usable")) == shown


def test_ids_are_numbered_by_appearance_and_members_by_subscription():
    one, other = (f"oracle-0b0e7a4c-9c53-4a7e-8b1c-{end:012}" for end in (1, 2))
    listed = [{"member_id": one, "metadata": b"z"}, {"member_id": other, "metadata": b"a"}]
    talk = Conversation("127.0.0.1:1", "a scene")
    assert talk.plain({"members": listed, "leader": one}) == {
        "members": [
            {"member_id": "member-1", "metadata": "61"},
            {"member_id": "member-2", "metadata": "7a"},
        ],
        "leader": "member-2",
    }
    assert talk.plain({"member_id": "nobody"}) == {"member_id": "nobody"}


def test_own_fields_that_were_not_sent_are_not_compared():
    struct = Struct(topics=Array(Struct(lag=Int32(), ours=Int32(tag=1000, default=-1))))
    absent, sent = {"lag": 1, "ours": -1}, {"lag": 1, "ours": 2}
    found = without_own_fields(struct, {"topics": [absent, sent]})
    assert found == {"topics": [{"lag": 1}, sent]}
