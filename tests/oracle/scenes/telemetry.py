"""GetTelemetrySubscriptions and PushTelemetry: client metrics.

Left out: a push that is too late, which takes as long as a subscription's interval.
"""

from __future__ import annotations

import gzip

from kafkalite.ids import NO_ID
from kafkalite.protocol.schemas.cluster import API_VERSIONS
from kafkalite.protocol.schemas.configs import (
    GET_TELEMETRY_SUBSCRIPTIONS,
    INCREMENTAL_ALTER_CONFIGS,
    PUSH_TELEMETRY,
)
from tests.oracle.conversation import Conversation
from tests.oracle.scenes import scene
from tests.oracle.scenes.configs import CLIENT_METRICS, DELETE, SET, changes

SOMEBODY = b"\x17" * 16
OF_ITS_MAKING = ("subscription_id",)
NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)


def subscribed(talk: Conversation, note: str, client_instance_id=NO_ID):
    asked = {"client_instance_id": client_instance_id}
    return talk.ask(GET_TELEMETRY_SUBSCRIPTIONS, 0, asked, note=note, veil=OF_ITS_MAKING)


def pushed(talk: Conversation, note: str, of, **more):
    asked = {
        "client_instance_id": bytes(of.client_instance_id), "subscription_id": of.subscription_id,
        "terminating": False, "compression_type": NONE, "metrics": b"", **more,
    }  # fmt: skip
    talk.ask(PUSH_TELEMETRY, 0, asked, note=note)


@scene()
def a_client_is_told_what_to_push(talk):
    first = subscribed(talk, "a new one")
    subscribed(talk, "another new one")
    subscribed(talk, "the first again, too soon", bytes(first.client_instance_id))
    subscribed(talk, "one that has an id already", SOMEBODY)
    subscribed(talk, "one with an id that is nobody's", b"\0" * 15 + b"\1")


@scene()
def pushes_are_looked_at(talk):
    pushed(talk, "by nobody", subscribed(talk, ""), client_instance_id=NO_ID)
    for note, more in (
        ("nothing", {}),
        ("under another subscription", {"subscription_id": 77}),
        ("in a codec nobody knows", {"compression_type": 9}),
        ("in a negative codec", {"compression_type": -1}),
        ("too much", {"metrics": bytes((1 << 20) + 1)}),
        ("the most there may be", {"metrics": bytes(1 << 20)}),
        ("bytes that are no metrics", {"metrics": b"no metrics"}),
        ("bytes that are not compressed", {"metrics": b"no", "compression_type": GZIP}),
        ("compressed", {"metrics": gzip.compress(b""), "compression_type": GZIP}),
        ("the last", {"terminating": True}),
    ):
        pushed(talk, note, subscribed(talk, f"before {note}"), **more)


@scene()
def pushes_have_their_time(talk):
    of = subscribed(talk, "a new one")
    pushed(talk, "the first", of)
    pushed(talk, "the second, too soon", of)
    pushed(talk, "the last, any time", of, terminating=True)
    pushed(talk, "after the last", of, terminating=True)
    pushed(talk, "after the last, as if it were not", of)
    subscribed(talk, "after the last", bytes(of.client_instance_id))


@scene()
def whoever_matches_is_asked_for_metrics(talk):
    def alter(*changed):
        named = {"resource_type": CLIENT_METRICS, "resource_name": "telemetry"}
        asked = {"resources": [{**named, "configs": changes(*changed)}]}
        talk.quietly(INCREMENTAL_ALTER_CONFIGS, 1, asked)
        # A new topic is created to await the change's replay.
        talk.topic()

    wanted = {
        "metrics": "org.apache.kafka.producer.,org.apache.kafka.consumer.",
        "interval.ms": "7000", "match": "client_software_name=telemetry.*",
    }  # fmt: skip
    alter(*[(SET, key, value) for key, value in wanted.items()])
    for name in ("telemetry-client", "another"):
        line = talk.beside()
        about = {"client_software_name": name, "client_software_version": "1"}
        line.quietly(API_VERSIONS, 3, about)
        of = subscribed(line, name)
        pushed(line, name, of)
    alter((SET, "metrics", "*"))
    subscribed(talk, "who does not say what he is")
    alter(*[(DELETE, key, None) for key in wanted])
