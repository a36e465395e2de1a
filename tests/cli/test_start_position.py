"""The start position of a reader, as written on the command line."""

from __future__ import annotations

import argparse
from datetime import UTC, datetime

import pytest

from kafkalite.cli.start_position import (
    BEGINNING,
    END,
    AtOffset,
    LastRecords,
    SinceAge,
    SinceTimestamp,
    start,
)


@pytest.mark.parametrize(
    ("word", "meaning"),
    [
        ("beginning", SinceTimestamp(BEGINNING)),
        ("end", SinceTimestamp(END)),
        ("0", AtOffset(0)),
        ("123456789012", AtOffset(123456789012)),
        ("-5", LastRecords(5)),
        ("@-10m", SinceAge(600_000)),
        ("@-250ms", SinceAge(250)),
        ("@-90s", SinceAge(90_000)),
        ("@-2h", SinceAge(7_200_000)),
        ("@-1d", SinceAge(86_400_000)),
        ("@-1w", SinceAge(604_800_000)),
        ("s@1357032600000", SinceTimestamp(1357032600000)),
        ("@1357032600000", SinceTimestamp(1357032600000)),
        ("@2013-01-01T09:30:00Z", SinceTimestamp(1357032600000)),
        ("@2013-01-01T10:30+01:00", SinceTimestamp(1357032600000)),
    ],
)
def test_start_position_is_parsed(word, meaning):
    assert start(word) == meaning


def test_date_without_zone_is_local_time():
    local = datetime(2013, 7, 1, 9, 30).astimezone()
    assert start("@2013-07-01T09:30") == SinceTimestamp(
        int(local.astimezone(UTC).timestamp()) * 1000
    )


@pytest.mark.parametrize(
    "word",
    ["", "now", "stored", "5.0", "--5", "@", "@-10", "@-10y", "@10m", "@2013-13-01", "s@", "٥"]
    + ["9" * 30, "-" + "9" * 30, "@-" + "9" * 30 + "w", "e@5"],
)
def test_invalid_start_position_names_the_accepted_forms(word):
    with pytest.raises(argparse.ArgumentTypeError, match="beginning, end, an offset"):
        start(word)
