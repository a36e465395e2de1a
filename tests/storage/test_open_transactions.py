"""Open and ended transactions of a log: the last stable offset against a search of all of them."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from kafkalite.storage.state.open_transactions import OpenTransactions

STEPS = st.lists(
    st.tuples(st.sampled_from(["begin", "end", "end", "commit", "truncate"]), st.integers(0, 3)),
    max_size=80,
)


@given(STEPS, st.integers(0, 60))
@example([("begin", 0), ("begin", 1), ("end", 1), ("end", 0), ("commit", 2)], 0)
@example([("begin", 0), ("begin", 1), ("end", 0), ("end", 1), ("commit", 2), ("commit", 1)], 0)
def test_last_stable_offset_equals_that_of_a_search(steps, log_start_offset):
    transactions = OpenTransactions()
    begun: dict[int, int] = {}
    ended: list[tuple[int, int]] = []
    offset = high_watermark = 0
    for step, number in steps:
        if step == "begin" and number not in begun:
            begun[number] = offset
            transactions.begin(number, offset)
            offset += 1
        elif step == "end" and number in begun:
            ended.append((begun.pop(number), offset))
            transactions.end(number, offset, is_commit=False)
            offset += 1
        elif step == "commit":
            high_watermark = max(high_watermark, offset - number)
        elif step == "truncate" and offset - number >= high_watermark:
            earlier, transactions = transactions, OpenTransactions()
            offset -= number
            begun = {each: first for each, first in begun.items() if first < offset}
            ended = [each for each in ended if each[1] < offset]
            transactions.restore(begun)
            transactions.keep_ended(earlier, offset)
        unstable = [*begun.values(), *(first for first, last in ended if last >= high_watermark)]
        wanted = min([*unstable, high_watermark])
        wanted = max(wanted, min(log_start_offset, high_watermark))
        assert transactions.last_stable_offset(high_watermark, log_start_offset) == wanted
