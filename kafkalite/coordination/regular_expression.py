"""RegularExpression: expressions of RE2's syntax that a client sends, matched in linear time.

    text ──parse──▶ tree ──compile──▶ states ──match──▶ a set of states after each character

Python's `re` backtracks: a short hostile expression could keep it busy for years.  Here the time of
a match is at most characters times states, and it is spent in steps.  Transitions between sets of
states are cached, so that most characters cost one lookup.

A match is of the whole text, so that greedy and lazy quantifiers are the same.  The syntax is in
regular_syntax.py.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import NamedTuple, TypeAlias

from kafkalite.coordination.regular_syntax import (
    WORD,
    Alternatives,
    Assertion,
    CharacterSet,
    NodeSequence,
    Repeated,
    SyntaxNode,
    parse,
)
from kafkalite.errors import InvalidRegularExpression

STATES_MAX = 1_000
"""Maximum number of states: a step of a match, one character, takes some microseconds for each."""
TRANSITIONS_CACHED_MAX = 10_000
CACHED_COUNT = 1_000
"""Number of characters, their transitions cached, in one step of a match."""

States: TypeAlias = frozenset[int]


class NfaState(NamedTuple):
    """A state: how to leave it, and the states that follow."""

    condition: CharacterSet | Assertion | None
    following: tuple[int, ...]


class RegularExpression:
    """A compiled expression."""

    def __init__(self, text: str) -> None:
        """Compile; raise InvalidRegularExpression for invalid syntax or too many states."""
        tree = parse(text)
        if _state_count(tree) > STATES_MAX:
            raise InvalidRegularExpression(
                f"The regular expression is too large: it has more than {STATES_MAX} states."
            )
        # State 0 accepts; the others are compiled from the last to the first.
        self._states = [NfaState(None, ())]
        self._begin = frozenset({self._compile(tree, 0)})
        self._transitions: dict[tuple[States, str, str], States] = {}
        self.work = 0
        """Number of states visited by all matches so far, about a microsecond each."""

    def matches(self, text: str) -> Generator[None, None, bool]:
        """Return whether the whole text matches; yield between steps."""
        states, before = self._begin, ""
        for count, character in enumerate(text):
            following = self._transitions.get((states, before, character))
            if following is None:
                following = self._follow(states, before, character)
                yield
            elif count % CACHED_COUNT == 0:
                yield
            if not following:
                return False
            states, before = following, _kind(character)
        return 0 in self._reach(states, before, "")

    def _follow(self, states: States, before: str, character: str) -> States:
        following: set[int] = set()
        found: dict[int, bool] = {}  # the states of a repeated set share it
        reached = self._reach(states, before, character)
        self.work += len(reached)
        for number in reached:
            condition, then = self._states[number]
            if not isinstance(condition, CharacterSet):
                continue
            is_in = found.get(id(condition))
            if is_in is None:
                is_in = found[id(condition)] = condition.has(character)
            if is_in:
                following.update(then)
        if len(self._transitions) >= TRANSITIONS_CACHED_MAX:
            self._transitions.clear()
        result = self._transitions[states, before, character] = frozenset(following)
        return result

    def _reach(self, states: States, before: str, after: str) -> set[int]:
        """Return the states that are reached without a character, between these two."""
        reached: set[int] = set()
        left = [*states]
        while left:
            number = left.pop()
            if number in reached:
                continue
            reached.add(number)
            condition, following = self._states[number]
            if condition is None or (
                isinstance(condition, Assertion) and _holds(condition, before, after)
            ):
                left += following
        return reached

    # -- compilation -------------------------------------------------------------------------

    def _add(self, condition: CharacterSet | Assertion | None, *following: int) -> int:
        self._states.append(NfaState(condition, following))
        return len(self._states) - 1

    def _compile(self, node: SyntaxNode, then: int) -> int:
        """Add the states of a node, after which `then` follows; return the first."""
        match node:
            case NodeSequence(nodes):
                for each in reversed(nodes):
                    then = self._compile(each, then)
                return then
            case Alternatives(nodes):
                return self._add(None, *(self._compile(each, then) for each in nodes))
            case Repeated():
                return self._compile_repeated(node, then)
            case _:
                return self._add(node, then)

    def _compile_repeated(self, node: Repeated, then: int) -> int:
        if node.most is None:
            loop = self._add(None)
            first = self._compile(node.node, loop)
            self._states[loop] = NfaState(None, (first, then))
            then = loop
        else:
            end = then
            for _ in range(node.most - node.least):
                then = self._add(None, self._compile(node.node, then), end)
        for _ in range(node.least):
            then = self._compile(node.node, then)
        return then


def _state_count(node: SyntaxNode) -> int:
    match node:
        case NodeSequence(nodes):
            return sum(map(_state_count, nodes))
        case Alternatives(nodes):
            return 1 + sum(map(_state_count, nodes))
        case Repeated(repeated, least, most):
            count = 1 + _state_count(repeated)
            return count * (most if most is not None else least + 1)
        case _:
            return 1


def _kind(character: str) -> str:
    """Return the kind of a character, by which assertions beside it hold or not."""
    if character == "\n":
        return "\n"
    return "w" if WORD.has(character) else "."


def _holds(assertion: Assertion, before: str, after: str) -> bool:
    """Return whether an assertion holds between two characters; "" is an end of the text."""
    match assertion:
        case Assertion.TEXT_BEGIN:
            return not before
        case Assertion.TEXT_END:
            return not after
        case Assertion.LINE_BEGIN:
            return before in ("", "\n")
        case Assertion.LINE_END:
            return after in ("", "\n")
    is_boundary = (before == "w") != (after != "" and WORD.has(after))
    return is_boundary == (assertion is Assertion.WORD_BOUNDARY)
