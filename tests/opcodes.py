"""The work of a call, counted: for tests of what grows with what."""

from __future__ import annotations

import sys


def opcodes_of(call):
    """Return how many opcodes of Python a call takes."""
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
