"""Format tokens and JSON, on records built here and formatted like those of a broker."""

from __future__ import annotations

import argparse
import json

import pytest

from kafkalite.cli.record_format import delimiter, formatted, json_lines, template, unescaped


class Record:
    """A stand-in for a Message, with its methods."""

    def __init__(self, key, value, headers=None, kind=1):
        self.parts = key, value, headers, kind

    def topic(self):
        return "größe"

    def partition(self):
        return 3

    def offset(self):
        return 12

    def timestamp(self):
        return self.parts[3], 1357032600000

    def key(self):
        return self.parts[0]

    def value(self):
        return self.parts[1]

    def headers(self):
        return self.parts[2]


@pytest.fixture(autouse=True)
def records_are_messages(monkeypatch):
    monkeypatch.setattr("kafkalite.cli.record_format.Message", Record)


BOTH = [Record(b"k", b"v\xff", [("a", b"1"), ("b", None), ("a", b"")]), Record(None, None)]


@pytest.mark.parametrize(
    ("form", "lines"),
    [
        ("%t", "größegröße"),
        ("%p %o\\n", "3 12\n3 12\n"),
        ("%T;", "1357032600000;1357032600000;"),
        ("[%k]", "[k][]"),
        ("%K,", "1,-1,"),
        ("%S,", "2,-1,"),
        ("%h|", "a=1,b=NULL,a=||"),
        ("100%%\\t", "100%\t100%\t"),
        ("nothing ", "nothing nothing "),
        ("%%s%%%p", "%s%3%s%3"),
        ("\\x41\\\\\\0", "A\\\0A\\\0"),
        ("", ""),
    ],
)
def test_format_token_is_replaced_in_each_record(form, lines):
    assert formatted(template(form))(BOTH) == lines.encode()


def test_values_are_written_as_bytes_and_nulls_as_requested():
    assert formatted(b"%s\n")(BOTH) == b"v\xff\n\n"
    assert formatted(b"%s %k\n", b"NULL")(BOTH) == b"v\xff k\nNULL NULL\n"


def test_binary_size_token_is_big_endian():
    assert formatted(template("%R"))(BOTH) == b"\0\0\0\2\xff\xff\xff\xff"


@pytest.mark.parametrize("form", ["%", "%x", "%s %", "100%", "%é"])
def test_unknown_token_is_rejected(form):
    with pytest.raises(argparse.ArgumentTypeError, match="unknown token"):
        template(form)


@pytest.mark.parametrize(
    ("text", "meaning"),
    [
        ("\\n", b"\n"),
        ("\\x1E", b"\x1e"),
        ("a\\tb", b"a\tb"),
        ("é", "é".encode()),
        ("\udcff", b"\xff"),
    ],
)
def test_escapes_have_the_meaning_of_c(text, meaning):
    assert unescaped(text) == delimiter(text) == meaning


@pytest.mark.parametrize("text", ["\\", "\\q", "\\x1", "\\xzz"])
def test_unknown_escape_is_rejected(text):
    with pytest.raises(argparse.ArgumentTypeError, match="unknown escape"):
        unescaped(text)


def test_json_has_the_field_names_of_kcat():
    first, second, end = json_lines(
        [Record("clé".encode(), b"v", [("h", b"1"), ("n", None)]), Record(None, b"", kind=2)]
    ).split(b"\n")
    assert end == b""
    assert json.loads(first) == {
        "topic": "größe",
        "partition": 3,
        "offset": 12,
        "tstype": "create",
        "ts": 1357032600000,
        "headers": ["h", "1", "n", None],
        "key": "clé",
        "payload": "v",
    }
    assert json.loads(second)["tstype"] == "logappend"
    assert json.loads(second)["key"] is None
    assert "headers" not in json.loads(second)


def test_bytes_that_are_not_utf8_are_base64_in_json():
    fields = json.loads(json_lines([Record(b"\xff", b"\xfe\x00")]))
    assert fields["key_base64"] == "/w=="
    assert fields["payload_base64"] == "/gA="
    assert "payload" not in fields
