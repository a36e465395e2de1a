"""Declarations of configuration keys: types, checks, defaults and error texts."""

import pytest

from kafkalite.config.key import OnlyValue, Scope, Type, at_least, at_most, between, one_of
from kafkalite.errors import InvalidConfig


def key(type, default=None, **words):
    return Scope("thing").declare("a.key", type, default, "A key.", **words)


@pytest.mark.parametrize(
    ("type", "text", "value"),
    [
        (Type.BOOLEAN, "true", True),
        (Type.BOOLEAN, " False ", False),
        (Type.STRING, " some words ", "some words"),
        (Type.SHORT, "-32768", -32_768),
        (Type.INT, "2147483647", 2_147_483_647),
        (Type.LONG, "-9223372036854775808", -(1 << 63)),
        (Type.LONG, "+7", 7),
        (Type.DOUBLE, "0.25", 0.25),
        (Type.LIST, "a, b ,c", ("a", "b", "c")),
        (Type.LIST, "", ()),
        (Type.CLASS, "a.b.C", "a.b.C"),
        (Type.PASSWORD, "secret", "secret"),
    ],
)
def test_parse_returns_value_of_key_type(type, text, value):
    assert key(type).parse(text) == value


@pytest.mark.parametrize(
    ("type", "text"),
    [
        (Type.BOOLEAN, "yes"),
        (Type.BOOLEAN, ""),
        (Type.INT, "2147483648"),
        (Type.INT, "1_000"),
        (Type.INT, "1.0"),
        (Type.INT, "--1"),
        (Type.INT, "٣"),
        (Type.INT, "9" * 5_000),
        (Type.SHORT, "32768"),
        (Type.LONG, "9223372036854775808"),
        (Type.LONG, ""),
        (Type.DOUBLE, "half"),
    ],
)
def test_parse_of_wrong_type_raises_invalid_config_naming_the_key(type, text):
    with pytest.raises(InvalidConfig, match=r"^a\.key must be .*, not '"):
        key(type).parse(text)


@pytest.mark.parametrize(
    ("type", "value"),
    [
        (Type.BOOLEAN, True),
        (Type.BOOLEAN, False),
        (Type.LONG, -1),
        (Type.DOUBLE, 0.5),
        (Type.LIST, ("a", "b")),
        (Type.LIST, ()),
        (Type.STRING, "x"),
    ],
)
def test_parse_returns_formatted_value(type, value):
    declared = key(type, value)
    assert declared.parse(declared.format(value)) == value


def test_format_of_none_is_empty():
    assert key(Type.LONG).format(None) == ""


@pytest.mark.parametrize(
    ("type", "check", "good", "bad"),
    [
        (Type.INT, at_least(3), "3", "2"),
        (Type.INT, at_most(3), "3", "4"),
        (Type.INT, between(1, 3), "1", "0"),
        (Type.INT, between(1, 3), "3", "4"),
        (Type.STRING, one_of("a", "b"), "b", "c"),
        (Type.LIST, OnlyValue(("a",), "b is not there yet"), "a", "a,b"),
        (Type.BOOLEAN, OnlyValue(False, "it is not there yet"), "false", "true"),
    ],
)
def test_check_accepts_values_in_range_only(type, check, good, bad):
    declared = key(type, check=check)
    declared.parse(good)
    with pytest.raises(InvalidConfig) as refused:
        declared.parse(bad)
    assert str(refused.value) == f"a.key must be {check.words}, not {bad!r}."


def test_only_value_explains_missing_alternatives():
    assert OnlyValue(("delete",), "no cleaner").words == "delete (no cleaner)"
    assert OnlyValue((), "one replica").words == "empty (one replica)"
    assert OnlyValue(False, "no tiers").words == "false (no tiers)"


def test_declare_rejects_default_that_fails_its_check():
    with pytest.raises(InvalidConfig):
        key(Type.INT, 2, check=at_least(3))


def test_declare_rejects_duplicate_name():
    scope = Scope("thing")
    scope.declare("a.key", Type.INT, 1, "One.")
    with pytest.raises(AssertionError, match="twice"):
        scope.declare("a.key", Type.INT, 2, "Another.")


def test_unknown_key_error_suggests_similar_names():
    scope = Scope("thing")
    scope.declare("flush.ms", Type.INT, 1, "One.")
    with pytest.raises(InvalidConfig, match=r"flsh\.ms .* of a thing; did you mean flush\.ms\?"):
        scope.parse({"flsh.ms": "1"})
    with pytest.raises(InvalidConfig, match=r"of a thing\.$"):
        scope.parse({"quite.another": "1"})


def test_config_error_truncates_client_text():
    for name, value in [("a.key", "x" * 30_000), ("k" * 30_000, "1")]:
        scope = Scope("thing")
        scope.declare("a.key", Type.INT, 1, "One.")
        with pytest.raises(InvalidConfig) as refused:
            scope.parse({name: value})
        assert len(str(refused.value)) < 200


def test_left_out_key_is_rejected_with_reason():
    scope = Scope("thing")
    scope.leave_out("old.", "older", because="it is gone")
    for name in ("old.key", "older"):
        with pytest.raises(InvalidConfig, match=f"{name} is not supported: it is gone"):
            scope.parse({name: "1"})
    with pytest.raises(InvalidConfig, match="is not a configuration key"):
        scope.parse({"older.key": "1"})


@pytest.mark.parametrize("type", Type)
def test_only_passwords_are_sensitive(type):
    assert key(type).sensitive == (type is Type.PASSWORD)
