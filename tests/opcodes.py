"""Counting the work of a call, for tests of how a cost grows."""

from __future__ import annotations

import sys


def opcodes_of(call):
    """Return the number of Python opcodes that a call executes."""
    count = 0

    def trace(frame, event, _):
        nonlocal count
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return count
