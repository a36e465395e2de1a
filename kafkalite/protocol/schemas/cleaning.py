"""Messages on the local listener between a node, the log cleaner and the command line.

    cleaner                                   node
    OFFER    ────────────────────────────────▶
             ◀──────────────────────── OFFERED          the dirtiest log that is due, if any
    TAKE_JOB ────────────────────────────────▶
             ◀────────────── JOB + 1 descriptor         the job, in a file (cleaning_files.py)
             ◀─────────────────── CANCEL_JOB            at any time after that
    CLEANED  ────────────────────────────────▶          the result is in the same file
             ◀──────────────────────── SWAPPED          the node has replaced the segments, or not
             ◀──────────────────────── WAKE_UP          a pass was requested: send OFFER again

    command line                              node
    COMPACT  ────────────────────────────────▶          roll the log, and clean it soon
    CLEANER_STATE ───────────────────────────▶
             ◀───────────────── CLEANER_STATUS          the response to both

Only processes of the broker's own user may send them: a job names files of the data directory.
"""

from __future__ import annotations

from enum import IntEnum

from kafkalite.protocol.schemas.local import MESSAGES
from kafkalite.protocol.types import Bool, Float64, Int8, Int16, Int32, Int64, String, Struct, Uuid


class CleaningState(IntEnum):
    """State of a partition in CLEANER_STATUS."""

    NONE = 0
    CLEANING = 1
    ABORTING = 2
    UNCLEANABLE = 3

    @property
    def title(self) -> str:
        """Return the state's name on the command line, such as `cleaning`."""
        return self.name.lower()


# Cleaner to node.

OFFER = MESSAGES.declare(7, "Offer", "0", Struct(request_id=Int64()))

TAKE_JOB = MESSAGES.declare(
    8, "TakeJob", "0",
    Struct(request_id=Int64(), topic_id=Uuid(), partition=Int32()),
)  # fmt: skip

CLEANED = MESSAGES.declare(
    9, "Cleaned", "0",
    # With the request id of TAKE_JOB.
    Struct(
        request_id=Int64(),
        error_code=Int16(),
        error_message=String(nullable="0+", default=None),
        # True if another attempt may succeed, such as after a full disk or a cancelled job.
        retriable=Bool(),
    ),
)  # fmt: skip

# Node to cleaner.

OFFERED = MESSAGES.declare(
    10, "Offered", "0",
    Struct(
        request_id=Int64(),
        # -1: no log is due.
        partition=Int32(default=-1),
        topic_id=Uuid(),
        dirty_ratio=Float64(),
        # The cleaner's settings.
        threads=Int32(),
        backoff_ms=Int64(),
        bytes_per_second=Float64(),
    ),
)  # fmt: skip

JOB = MESSAGES.declare(
    11, "Job", "0",
    Struct(
        request_id=Int64(),
        error_code=Int16(),
        error_message=String(nullable="0+", default=None),
    ),
)  # fmt: skip

CANCEL_JOB = MESSAGES.declare(
    12, "CancelJob", "0",
    Struct(request_id=Int64(), reason=String()),
)  # fmt: skip

SWAPPED = MESSAGES.declare(
    13, "Swapped", "0",
    Struct(
        request_id=Int64(),
        error_code=Int16(),
        error_message=String(nullable="0+", default=None),
    ),
)  # fmt: skip

WAKE_UP = MESSAGES.declare(14, "WakeUp", "0", Struct())

# Command line to node, and the response.

COMPACT = MESSAGES.declare(
    15, "Compact", "0",
    Struct(request_id=Int64(), topic_id=Uuid(), partition=Int32()),
)  # fmt: skip

CLEANER_STATE = MESSAGES.declare(
    16, "CleanerState", "0",
    Struct(request_id=Int64(), topic_id=Uuid(), partition=Int32()),
)  # fmt: skip

CLEANER_STATUS = MESSAGES.declare(
    17, "CleanerStatus", "0",
    Struct(
        request_id=Int64(),
        error_code=Int16(),
        error_message=String(nullable="0+", default=None),
        # A CleaningState.
        state=Int8(),
        # The reason why it is uncleanable, or why the last pass failed.
        reason=String(nullable="0+", default=None),
        # True until the pass that COMPACT requested has ended.
        is_requested=Bool(),
        # Number of cleaner threads that are connected.
        cleaners=Int32(),
        dirty_ratio=Float64(),
        log_size=Int64(),
        cleanable_size=Int64(),
        first_dirty_offset=Int64(default=-1),
        first_uncleanable_offset=Int64(default=-1),
        # Passes since the node started, and the end of the last one; -1: none.
        passes=Int64(),
        last_cleaned_ms=Int64(default=-1),
    ),
)  # fmt: skip
