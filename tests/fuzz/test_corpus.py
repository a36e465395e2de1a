"""The fuzzers' corpus and seeds, replayed through the ordinary build."""

from __future__ import annotations

from array import array

import pytest

from tests.fuzz import decoders
from tests.fuzz.targets import TARGETS

CORPUS_SIZE_MAX = 1 << 20


@pytest.mark.parametrize("name", TARGETS)
def test_a_targets_corpus_is_refused_or_read_and_agreed_on(name):
    target = TARGETS[name]
    kept = decoders.corpus(name)
    assert kept, "a target has a corpus: python -m tests.fuzz.decoders"
    for given in [*target.seeds(), *kept]:
        # An array has exactly the size of its bytes, so that a sanitizer detects a read past them.
        assert target.run(memoryview(array("B", given))) >= 0, given.hex()


@pytest.mark.parametrize("name", TARGETS)
def test_a_targets_seeds_fare_in_more_than_one_way(name):
    target = TARGETS[name]
    assert len({target.run(memoryview(given)) for given in target.seeds()}) > 2


def test_the_corpus_stays_small():
    assert sum(path.stat().st_size for path in decoders.CORPUS.iterdir()) < CORPUS_SIZE_MAX
