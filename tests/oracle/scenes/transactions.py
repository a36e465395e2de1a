"""InitProducerId, for idempotent producers only.

Left out: transactional ids (coordinator.py).
"""

from __future__ import annotations

from kafkalite.protocol.schemas.transactions import INIT_PRODUCER_ID
from tests.oracle.scenes import scene

STABLE = range(6)


@scene(INIT_PRODUCER_ID, versions=STABLE)
def every_producer_gets_an_id_of_its_own(talk, version):
    talk.producer_id()
    asked = {"transactional_id": None, "transaction_timeout_ms": 60_000}
    first = talk.ask(INIT_PRODUCER_ID, version, asked)
    second = talk.ask(INIT_PRODUCER_ID, version, asked)
    assert first.producer_id != second.producer_id, "an id was given twice"


@scene(INIT_PRODUCER_ID, versions=STABLE)
def odd_wishes_of_a_plain_producer(talk, version):
    for timeout_ms in (0, -1, 0x7FFFFFFF):
        asked = {"transactional_id": None, "transaction_timeout_ms": timeout_ms}
        talk.ask(INIT_PRODUCER_ID, version, asked, note=f"timeout {timeout_ms}")
    asked = {"transactional_id": "", "transaction_timeout_ms": 1000}
    talk.ask(INIT_PRODUCER_ID, version, asked, note="an empty transactional id")


@scene(INIT_PRODUCER_ID, versions=range(3, 6))
def a_plain_producer_may_name_the_id_it_had(talk, version):
    asked = {"transactional_id": None, "transaction_timeout_ms": 1000}
    given = talk.ask(INIT_PRODUCER_ID, version, asked)
    for producer_id, epoch in ((given.producer_id, 0), (given.producer_id, 7), (123_456, 0)):
        again = {**asked, "producer_id": producer_id, "producer_epoch": epoch}
        talk.ask(INIT_PRODUCER_ID, version, again, note=f"with epoch {epoch}")
    talk.ask(INIT_PRODUCER_ID, version, {**asked, "producer_id": 5}, note="an id without an epoch")
    talk.ask(INIT_PRODUCER_ID, version, {**asked, "producer_epoch": 5}, note="an epoch, no id")
