"""The fuzzers' corpus and seeds, replayed through the ordinary build."""

from __future__ import annotations

from array import array

import pytest

from tests.fuzz import decoders
from tests.fuzz.targets import TARGETS

CORPUS_SIZE_MAX = 1 << 20


@pytest.mark.parametrize("name", TARGETS)
def test_corpus_is_rejected_or_read_as_the_twin_reads_it(name):
    target = TARGETS[name]
    kept = decoders.corpus(name)
    assert kept, "a target has a corpus: python -m tests.fuzz.decoders"
    for given in [*target.seeds(), *kept]:
        # An array has exactly the size of its bytes, so that a sanitizer detects a read past them.
        assert target.run(memoryview(array("B", given))) >= 0, given.hex()


@pytest.mark.parametrize("name", TARGETS)
def test_seeds_of_a_target_reach_several_outcomes(name):
    target = TARGETS[name]
    assert len({target.run(memoryview(given)) for given in target.seeds()}) > 2


def test_corpus_is_small():
    assert sum(path.stat().st_size for path in decoders.CORPUS.iterdir()) < CORPUS_SIZE_MAX
