"""kafkalite completion: completion of commands, flags and names in a shell.

    source <(kafkalite completion bash)

The scripts for the shells are argcomplete's.  At each tab the shell runs `kafkalite` with the line
in its environment, and `complete` prints the completions, from the arguments of the commands.
Names of topics and groups are requested from the broker; if it does not respond within
REQUEST_TIMEOUT_S, there are none.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterable
from typing import Any

from kafkalite.cli.command import Command, argument, command

REQUEST_TIMEOUT_S = 0.5
"""Timeout of a request; a tab must complete without noticeable delay."""

SHELLS = ("bash", "zsh", "fish")


@command(argument("shell", choices=SHELLS, help=", ".join(SHELLS)))
def completion(shell: str) -> None:
    """Print the completion script for a shell.

    Examples:
      source <(kafkalite completion bash)        # in ~/.bashrc, for every new shell
      source <(kafkalite completion zsh)         # in ~/.zshrc, after compinit
      kafkalite completion fish | source         # in ~/.config/fish/config.fish
    """
    from argcomplete.shell_integration import shellcode

    print(shellcode(["kafkalite"], shell=shell))


def complete(words: Iterable[str], commands_of: Callable[[str], dict[str, Command]]) -> None:
    """Complete the line in the environment and exit, if a shell requests that."""
    import argcomplete
    from argcomplete.completers import SuppressCompleter

    parser = argparse.ArgumentParser(prog="kafkalite")
    nouns = parser.add_subparsers()
    typed = os.environ.get("COMP_LINE", "").split()[1:2]
    for word in words:
        # Import the module of the word on the line only.
        if [word] == typed:
            add_commands(nouns.add_parser(word), word, commands_of(word))
        else:
            nouns.add_parser(word)
    argcomplete.autocomplete(
        parser,
        always_complete_options=False,
        default_completer=SuppressCompleter(),
    )
    sys.exit(0)


def add_commands(parser: argparse.ArgumentParser, word: str, verbs: dict[str, Command]) -> None:
    """Add the verbs of a noun to a parser, or the arguments of a single command."""
    if word in verbs:
        add_arguments(parser, verbs[word])
        return
    verb_parsers = parser.add_subparsers()
    for verb in verbs.values():
        add_arguments(verb_parsers.add_parser(verb.name, help=verb.summary), verb)


def add_arguments(parser: argparse.ArgumentParser, verb: Command) -> None:
    """Add a command's arguments to a parser, each with its completer."""
    from argcomplete.completers import FilesCompleter

    for names, options in verb.arguments:
        action: Any = parser.add_argument(*names, **options)
        kind = action.metavar or action.dest.upper()
        if kind in COMPLETERS:
            action.completer = completer(COMPLETERS[kind])
        elif kind in FILES:
            action.completer = FilesCompleter()


def completer(names_of: Callable[[argparse.Namespace], Iterable[str]]) -> Callable[..., list[str]]:
    """Wrap a completer for argcomplete; on an error it suggests nothing."""

    def names(parsed_args: argparse.Namespace, **_: object) -> list[str]:
        try:
            return list(names_of(parsed_args))
        except Exception:  # a shell cannot show an error here
            return []

    return names


def topics(parsed: argparse.Namespace) -> Iterable[str]:
    from kafkalite.protocol.schemas.cluster import METADATA

    request = {"topics": None, "allow_auto_topic_creation": False}
    return [topic.name for topic in wire(parsed).request(METADATA, request).topics]


def groups(parsed: argparse.Namespace) -> Iterable[str]:
    """Yield the groups of all brokers, since each knows only those that it coordinates."""
    from kafkalite.protocol.schemas.cluster import METADATA
    from kafkalite.protocol.schemas.groups import LIST_GROUPS

    client = wire(parsed)
    request = {"topics": [], "allow_auto_topic_creation": False}
    for broker in client.request(METADATA, request).brokers:
        response = client.request(LIST_GROUPS, {}, (broker.host, broker.port))
        yield from [group.group_id for group in response.groups]


def profile_names(parsed: argparse.Namespace) -> Iterable[str]:
    from kafkalite.cli.profiles import read

    return read()[0]


def key_names(parsed: argparse.Namespace) -> Iterable[str]:
    """Return the names of the keys of the command's resource."""
    from kafkalite.cli.resource import KINDS
    from kafkalite.config.resources import SCOPES, Resource

    kind = getattr(parsed, "kind", None)
    scopes = [SCOPES[Resource(KINDS[kind])]] if kind else SCOPES.values()
    return [name for scope in scopes for name in scope]


def topic_assignments(parsed: argparse.Namespace) -> Iterable[str]:
    from kafkalite.config.topic import TOPIC

    return [f"{name}=" for name in TOPIC]


def resource_keys(parsed: argparse.Namespace) -> Iterable[str]:
    """Complete `config get KIND`: the resource, then its keys."""
    if parsed.kind == "cluster" or parsed.arguments:
        return key_names(parsed)
    if parsed.kind == "topic":
        return topics(parsed)
    if parsed.kind == "group":
        return groups(parsed)
    return node_ids(parsed) if parsed.kind in ("node", "logger") else []


def resource_assignments(parsed: argparse.Namespace) -> Iterable[str]:
    """Complete `config set KIND`: the resource, then KEY=VALUE."""
    ending = "=" if parsed.kind == "cluster" or parsed.arguments else ""
    return [name + ending for name in resource_keys(parsed)]


def node_ids(parsed: argparse.Namespace) -> Iterable[str]:
    from kafkalite.protocol.schemas.cluster import METADATA

    request = {"topics": [], "allow_auto_topic_creation": False}
    return [str(broker.node_id) for broker in wire(parsed).request(METADATA, request).brokers]


def wire(parsed: argparse.Namespace) -> Any:
    """Return a client for the cluster that the line names."""
    from kafkalite.cli.clients import ClusterClients
    from kafkalite.cli.wire import WireClient

    cluster = ClusterClients(parsed.bootstrap, parsed.properties or (), parsed.profile)
    return WireClient(cluster, timeout_s=REQUEST_TIMEOUT_S)


COMPLETERS: dict[str, Callable[[argparse.Namespace], Iterable[str]]] = {
    "TOPIC": topics,
    "TOPIC[:PARTITIONS]": topics,
    "GROUP": groups,
    "PROFILE": profile_names,
    "KEY": key_names,
    "KEY=VALUE": topic_assignments,
    "NAME KEY": resource_keys,
    "NAME KEY=VALUE": resource_assignments,
}
"""Functions that return the completions, by metavar of the argument."""

FILES = ("FILE", "DIR", "FILES")
