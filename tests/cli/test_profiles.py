"""kafkalite profile, and the choice of the cluster for a command."""

from __future__ import annotations

import io
import json
import stat

import pytest

from kafkalite.cli import clients, main, profiles
from kafkalite.cli.clients import BOOTSTRAP_DEFAULT, ClusterClients
from kafkalite.errors import Refusal


@pytest.fixture(autouse=True)
def no_profile_chosen(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.delenv("KAFKALITE_BOOTSTRAP", raising=False)
    monkeypatch.delenv("KAFKALITE_PROFILE", raising=False)


def output_of(capsys, *words):
    assert main(["profile", *words]) == 0, capsys.readouterr().err
    return capsys.readouterr().out


def refused(capsys, *words):
    code = main(["profile", *words])
    result = capsys.readouterr()
    assert (result.out, result.err.count("\n")) == ("", 1)
    return code, result.err.removeprefix("kafkalite: ").rstrip("\n")


def test_profiles_are_added_listed_used_and_removed(capsys):
    assert output_of(capsys, "list") == "PROFILE  IN USE  ADDRESS  SECURITY\n"
    assert output_of(capsys, "add", "test", "-b", "a:1", "--use") == "test added and in use\n"
    assert output_of(capsys, "add", "prod", "-b", "b:2,c:3", "-X", "client.id=me") == "prod added\n"
    assert output_of(capsys, "list") == (
        "PROFILE  IN USE  ADDRESS  SECURITY\n"
        "prod     -       b:2,c:3  plaintext\n"
        "test     yes     a:1      plaintext\n"
    )
    assert output_of(capsys, "use", "prod") == "prod is in use\n"
    assert json.loads(output_of(capsys, "list", "--json"))[0] == {
        "name": "prod",
        "in_use": True,
        "properties": {"bootstrap.servers": "b:2,c:3", "client.id": "me"},
    }
    assert output_of(capsys, "remove", "prod") == "prod removed\n"
    assert profiles.profile_in_use() is None
    assert output_of(capsys, "list").splitlines()[1:] == ["test     -       a:1      plaintext"]


def test_secret_is_read_from_stdin_hidden_and_private(capsys, monkeypatch):
    words = ("-b", "b:2", "-X", "security.protocol=SASL_PLAINTEXT", "-X", "sasl.mechanism=PLAIN")
    monkeypatch.setattr("sys.stdin", io.StringIO("as % it = is#\n"))
    output_of(capsys, "add", "prod", *words, "-X", "sasl.username=me", "--secret", "sasl.password")
    assert profiles.profile_of("prod")["sasl.password"] == "as % it = is#"
    assert stat.S_IMODE(profiles.path().stat().st_mode) == 0o600
    assert stat.S_IMODE(profiles.path().parent.stat().st_mode) == 0o700
    shown = output_of(capsys, "list", "--json")
    assert "as %" not in shown
    assert json.loads(shown)[0]["properties"]["sasl.password"] == profiles.HIDDEN


def test_readable_secrets_are_reported_and_made_private(capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("x\n"))
    output_of(capsys, "add", "prod", "-b", "b:2", "--secret", "sasl.password")
    profiles.path().chmod(0o644)
    assert main(["profile", "use", "prod"]) == 0
    assert "is readable by other users" in capsys.readouterr().err
    assert stat.S_IMODE(profiles.path().stat().st_mode) == 0o600


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (["add", "a b", "-b", "x:1"], 2, "use up to 100 letters"),
        (["add", "test", "-b", "x:1"], 1, "profile test exists already (replace it with --replace"),
        (["add", "new", "-b", "x:1", "-X", "no.such=1"], 1, 'property: "no.such"'),
        (
            ["add", "new", "-b", "x:1", "-X", "client.id= spaced"],
            1,
            "cannot begin or end with a space",
        ),
        (["use", "tset"], 1, "profile 'tset' does not exist; did you mean test?"),
        (["use", "other"], 1, "profile 'other' does not exist (see: kafkalite profile list)"),
        (["use"], 2, "specify the profile to use, or --none"),
        (["use", "test", "--none"], 2, "specify the profile to use, or --none"),
        (["remove", "tset"], 1, "did you mean test?"),
    ],
)
def test_invalid_profile_command_is_one_line(words, code, sentence, capsys):
    output_of(capsys, "add", "test", "-b", "a:1")
    before = profiles.path().read_bytes()
    got, result = refused(capsys, *words)
    assert got == code
    assert sentence in result
    assert profiles.path().read_bytes() == before


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            "[prod]\nbootstrap.servers = a:1\n",
            "unknown section [prod]; rename it to [profile prod]",
        ),
        ("[profile prod]\nclient.id = a\n", "profile prod has no bootstrap.servers"),
        ("bootstrap.servers = a:1\n", "no section headers"),
        ("[profile a]\nbootstrap.servers\n", "contains parsing errors"),
        ("[profile a]\nb = 1\nb = 2\n", "already exists"),
    ],
)
def test_invalid_profile_file_is_one_line_with_its_path(text, sentence, capsys):
    profiles.path().parent.mkdir(parents=True)
    profiles.path().write_text(text)
    _, result = refused(capsys, "list")
    assert sentence in result
    assert str(profiles.path()) in result


def test_value_of_several_lines_is_read_back():
    pem = "-----BEGIN CERTIFICATE-----\nMIIB\n\nabc=\n-----END CERTIFICATE-----"
    sections = {"profile a": {"bootstrap.servers": "a:1", "ssl.ca.pem": pem}}
    assert profiles.sections_of(profiles.text_of(sections)) == sections


def test_cluster_sources_are_used_in_order_of_precedence(capsys, monkeypatch):
    assert ClusterClients().bootstrap == BOOTSTRAP_DEFAULT
    here = {"bootstrap": "127.0.0.1:777"}
    monkeypatch.setattr(clients, "running", lambda directory: here)
    assert ClusterClients().bootstrap == "127.0.0.1:777"
    output_of(capsys, "add", "used", "-b", "used:1", "-X", "client.id=used", "--use")
    output_of(capsys, "add", "named", "-b", "named:1", "-X", "client.id=named")
    assert ClusterClients().bootstrap == "used:1"
    monkeypatch.setenv("KAFKALITE_PROFILE", "named")
    assert (ClusterClients().bootstrap, ClusterClients().properties) == (
        "named:1",
        {"client.id": "named"},
    )
    monkeypatch.setenv("KAFKALITE_BOOTSTRAP", "env:1")
    assert (ClusterClients().bootstrap, ClusterClients().properties) == ("env:1", {})
    assert ClusterClients(profile="used").bootstrap == "used:1"
    assert ClusterClients("flag:1").bootstrap == "flag:1"


def test_address_flag_uses_no_profile_properties_unless_named(capsys):
    output_of(capsys, "add", "prod", "-b", "prod:1", "-X", "sasl.password=x", "--use")
    assert ClusterClients("evil:1").properties == {}
    both = ClusterClients("prod-2:1", [("client.id", "me")], "prod")
    assert both.bootstrap == "prod-2:1"
    assert both.properties == {"sasl.password": "x", "client.id": "me"}


def test_running_broker_of_another_user_is_ignored(monkeypatch):
    def other(directory):
        raise Refusal("belongs to another user")

    monkeypatch.setattr(clients, "running", other)
    assert ClusterClients().bootstrap == BOOTSTRAP_DEFAULT


def test_unreachable_broker_error_names_the_profile(capsys):
    output_of(capsys, "add", "gone", "-b", "127.0.0.1:1")
    assert main(["topic", "list", "--profile", "gone"]) == 1
    assert "no broker responds at 127.0.0.1:1 (profile gone): " in capsys.readouterr().err
