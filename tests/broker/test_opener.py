"""BatchOpener: a Future is completed with any exception that its steps raise."""

from __future__ import annotations

import select
from collections.abc import Iterator

import pytest

from kafkalite.broker.future import Future
from kafkalite.broker.replica import batch_opener as opening
from kafkalite.broker.replica.batch_opener import BatchOpener
from kafkalite.errors import KafkaError, UnknownServerError


class Panic(BaseException):
    """The base of the exception that a compiled codec raises when it panics."""


def panicking() -> Iterator[int]:
    yield 1
    raise Panic("index out of bounds")


def test_panic_of_a_codec_on_the_loop_fails_one_request() -> None:
    opener = BatchOpener()
    with pytest.raises(UnknownServerError, match="index out of bounds"):
        opener.run(panicking())  # type: ignore[arg-type]
    opener.close()


def test_panic_of_a_codec_on_the_thread_fails_one_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(opening, "BUDGET", 0)
    opener = BatchOpener()
    came: list[KafkaError | None] = []
    for _ in range(2):
        future = opener.run(panicking())  # type: ignore[arg-type]
        assert isinstance(future, Future)
        future.then(lambda _, error: came.append(error))
        assert select.select([opener], [], [], 30)[0], "the thread is gone"
        opener.collect()
    opener.close()
    assert [type(error) for error in came] == [UnknownServerError] * 2
