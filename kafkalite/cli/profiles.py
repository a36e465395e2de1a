"""kafkalite profile: store the addresses and client properties of clusters under names.

A command connects to the first of these that is set:
  -b HOST:PORT                 this address; no properties of a profile, except with --profile
  --profile NAME               address and properties of this profile
  $KAFKALITE_BOOTSTRAP         this address; no properties of a profile
  $KAFKALITE_PROFILE           address and properties of this profile
  kafkalite profile use NAME   address and properties of the profile in use
  the address of the broker that runs on the default data directory
  127.0.0.1:9092
-X adds properties, and overrides those of the profile.

Profiles are stored in $XDG_CONFIG_HOME/kafkalite/profiles.ini (default ~/.config/kafkalite), with a
section of librdkafka properties for each.  The file may contain passwords; its mode is 600.
"""

from __future__ import annotations

import configparser
import fcntl
import getpass
import json
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kafkalite.cli.command import (
    UsageError,
    argument,
    columns,
    command,
    key_value,
    nearest,
    printable,
    warn,
)
from kafkalite.errors import Refusal

ADDRESS = "bootstrap.servers"
HIDDEN = "********"
HEAD = "profile "
SETTINGS, IN_USE = "kafkalite", "profile"

NAME = argument("name", metavar="PROFILE", help="name of the profile")
JSON = argument("--json", action="store_true", dest="as_json", help="print JSON")

Profile = dict[str, str]
"""librdkafka properties, including bootstrap.servers."""


@command(JSON, name="list")
def list_profiles(as_json: bool) -> None:
    """List the profiles, without their secrets.

    Examples:
      kafkalite profile list
      kafkalite profile list --json | jq -r '.[].name'
    """
    profiles, in_use = read()
    listed: list[dict[str, Any]] = [
        {"name": name, "in_use": name == in_use, "properties": shown(profile)}
        for name, profile in sorted(profiles.items())
    ]
    if as_json:
        print(json.dumps(listed))
        return
    rows = [
        [
            each["name"],
            "yes" if each["in_use"] else None,
            each["properties"][ADDRESS],
            each["properties"].get("security.protocol", "plaintext").lower(),
        ]
        for each in listed
    ]
    print(columns(["PROFILE", "IN USE", "ADDRESS", "SECURITY"], rows))


@command(
    NAME,
    argument(
        "-b",
        "--bootstrap",
        metavar="HOST:PORT",
        type=printable,
        required=True,
        help="address of a broker",
    ),
    argument(
        "-X",
        dest="properties",
        metavar="PROP=VALUE",
        type=key_value,
        action="append",
        default=[],
        help="set a librdkafka property; may be repeated",
    ),
    argument(
        "--secret",
        dest="secrets",
        metavar="PROP",
        action="append",
        default=[],
        help="prompt for the value of a property, or read a line of stdin; may be repeated",
    ),
    argument("--replace", action="store_true", help="replace an existing profile"),
    argument(
        "--use", action="store_true", dest="then_use", help="select the profile as the one in use"
    ),
    JSON,
)
def add(
    name: str,
    bootstrap: str,
    properties: Sequence[tuple[str, str]],
    secrets: Sequence[str],
    replace: bool,
    then_use: bool,
    as_json: bool,
) -> None:
    """Add a profile: a name for a cluster's address and properties.

    Examples:
      kafkalite profile add test -b 127.0.0.1:19092 --use
      kafkalite profile add prod -b kafka.example.org:9093 -X security.protocol=SASL_SSL \\
          -X sasl.mechanism=SCRAM-SHA-512 -X sasl.username=me --secret sasl.password
    """
    if not re.fullmatch(r"[A-Za-z0-9._-]{1,100}", name):
        raise UsageError(
            f"invalid profile name {name!r}: use up to 100 letters, digits, '.', '-' and '_'"
        )
    profile = {ADDRESS: bootstrap, **dict(properties)}
    profile |= {secret: read_secret(secret) for secret in secrets}
    check(profile)
    with changed() as (profiles, settings):
        if name in profiles and not replace:
            raise Refusal(f"profile {name} exists already (replace it with --replace)")
        profiles[name] = profile
        if then_use:
            settings[IN_USE] = name
    fields = {"name": name, "added": True, "in_use": then_use}
    print(json.dumps(fields) if as_json else f"{name} added{' and in use' if then_use else ''}")


@command(
    argument("name", metavar="PROFILE", nargs="?", help="name of the profile"),
    argument("--none", action="store_true", help="use no profile"),
    JSON,
)
def use(name: str | None, none: bool, as_json: bool) -> None:
    """Select the profile of commands that do not name a cluster.

    Examples:
      kafkalite profile use prod
      kafkalite profile use --none
    """
    if (name is None) != none:
        raise UsageError("specify the profile to use, or --none")
    with changed() as (profiles, settings):
        if name is None:
            settings.pop(IN_USE, None)
        else:
            find(profiles, name)
            settings[IN_USE] = name
    print(json.dumps({"in_use": name}) if as_json else f"{name or 'no profile'} is in use")


@command(
    argument("names", metavar="PROFILE", nargs="+", help="the profiles' names"),
    JSON,
)
def remove(names: Sequence[str], as_json: bool) -> None:
    """Remove profiles.

    Examples:
      kafkalite profile remove test
    """
    with changed() as (profiles, settings):
        for name in dict.fromkeys(names):
            find(profiles, name)
            del profiles[name]
            if settings.get(IN_USE) == name:
                del settings[IN_USE]
    if as_json:
        print(json.dumps([{"name": name, "removed": True} for name in names]))
    else:
        print("".join(f"{name} removed\n" for name in names), end="")


def read_secret(secret: str) -> str:
    """Read a secret from the terminal without echo, or a line of stdin."""
    if sys.stdin.isatty():
        value = getpass.getpass(f"{secret}: ")
    else:
        value = sys.stdin.readline().rstrip("\r\n")
    if not value:
        raise Refusal(f"no value for {secret}: enter one, or pipe it to stdin")
    return value


def profile_of(name: str) -> Profile:
    """Return the properties of a profile; raise Refusal if there is none of that name."""
    profiles, _ = read()
    return find(profiles, name)


def profile_in_use() -> tuple[str, Profile] | None:
    """Return the profile that `use` has selected, if any."""
    profiles, in_use = read()
    return (in_use, find(profiles, in_use)) if in_use else None


def find(profiles: Mapping[str, Profile], name: str) -> Profile:
    if name not in profiles:
        hint = nearest(name, profiles) or " (see: kafkalite profile list)"
        raise Refusal(f"profile {name!r} does not exist{hint}")
    return profiles[name]


def check(profile: Profile) -> None:
    """Raise Refusal for properties that librdkafka does not accept; no connection is made."""
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient

    try:
        AdminClient({**profile, ADDRESS: "", "log_level": 0})
    except KafkaException as error:
        raise Refusal(str(error.args[0].str())) from error


def path() -> Path:
    """Return the path of the file with the profiles."""
    home = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(home) / "kafkalite" / "profiles.ini"


def read() -> tuple[dict[str, Profile], str | None]:
    """Return the profiles by name, and the name of the one in use."""
    profiles, settings = parsed(path())
    return profiles, settings.get(IN_USE)


def parsed(file: Path) -> tuple[dict[str, Profile], Profile]:
    """Return the profiles and settings of the file; empty if there is no file."""
    try:
        with file.open(encoding="utf-8") as lines:
            text = lines.read()
            mode = os.fstat(lines.fileno()).st_mode
    except FileNotFoundError:
        return {}, {}
    except UnicodeDecodeError:
        raise Refusal(f"{file} is not valid UTF-8") from None
    try:
        sections = sections_of(text)
    except configparser.Error as error:
        message = " ".join(str(error).split()).replace("'<string>'", str(file))
        raise Refusal(message.replace("<string>", str(file))) from None
    settings = sections.pop(SETTINGS, {})
    profiles = {}
    for section, properties in sections.items():
        name = section.removeprefix(HEAD)
        if name == section:
            raise Refusal(f"{file}: unknown section [{section}]; rename it to [{HEAD}{section}]")
        if ADDRESS not in properties:
            raise Refusal(
                f"{file}: profile {name} has no {ADDRESS}; add the line {ADDRESS} = HOST:PORT"
            )
        profiles[name] = properties
    if mode & 0o077 and any(is_secret(key) for each in profiles.values() for key in each):
        warn(f"{file} contains secrets and is readable by other users; run: chmod 600 {file}")
    return profiles, settings


def sections_of(text: str) -> dict[str, Profile]:
    """Return the sections of a file, with names and values as written."""
    parser = configparser.RawConfigParser(
        delimiters=("=",), comment_prefixes=("#",), default_section=""
    )
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read_string(text)
    return {section: dict(parser.items(section)) for section in parser.sections()}


def text_of(sections: Mapping[str, Profile]) -> str:
    """Return the text of sections; raise Refusal for values that the format cannot represent."""
    lines = []
    for section, properties in sections.items():
        lines.append(f"[{section}]")
        lines += [f"{key} = " + value.replace("\n", "\n    ") for key, value in properties.items()]
        lines.append("")
    text = "\n".join(lines)
    if sections_of(text) != sections:
        raise Refusal(
            "a value in a profile cannot begin or end with a space, or contain a comment (#)"
        )
    return text


@contextmanager
def changed() -> Iterator[tuple[dict[str, Profile], Profile]]:
    """Yield profiles and settings to change; write them if the block succeeds."""
    file = path()
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    directory = os.open(file.parent, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(directory, fcntl.LOCK_EX)
        profiles, settings = parsed(file)
        yield profiles, settings
        sections = {SETTINGS: settings} if settings else {}
        sections |= {HEAD + name: profile for name, profile in sorted(profiles.items())}
        replaced(file, text_of(sections))
        os.fsync(directory)
    finally:
        os.close(directory)


def replaced(file: Path, text: str) -> None:
    """Replace a file atomically, readable by its owner only."""
    temporary = file.with_name(f"{file.name}.{os.getpid()}.tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as lines:
            lines.write(text)
            lines.flush()
            os.fsync(lines.fileno())
        temporary.rename(file)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def shown(profile: Profile) -> Profile:
    """Return a profile without its secrets."""
    return {key: HIDDEN if is_secret(key) else value for key, value in profile.items()}


def is_secret(key: str) -> bool:
    return re.search(r"password|secret|passphrase|token|\.pem$", key) is not None
