"""Syntax of regular expressions: RE2's, as a tree.

Source: the syntax page of RE2.  Left out: scripts (`\\p{Greek}`) and `\\C`.
"""

from __future__ import annotations

import unicodedata
from enum import Enum
from typing import NamedTuple, TypeAlias

from kafkalite.errors import InvalidRegularExpression

LENGTH_MAX = 2_000
"""Maximum length of an expression, which is parsed at once: some milliseconds."""
NESTING_MAX = 100
"""Maximum depth of groups."""
REPEAT_MAX = 1_000
"""Maximum count of a repetition, as in RE2."""


class CharacterSet(NamedTuple):
    """A set of characters: ranges, Unicode categories and other sets, or all others."""

    ranges: tuple[tuple[str, str], ...] = ()
    categories: tuple[str, ...] = ()
    sets: tuple[CharacterSet, ...] = ()
    is_negated: bool = False
    ignores_case: bool = False

    def has(self, character: str) -> bool:
        """Return whether a character is in the set."""
        if self.ignores_case and len(character.swapcase()) == 1:
            is_in = self._lists(character) or self._lists(character.swapcase())
        else:
            is_in = self._lists(character)
        return is_in != self.is_negated

    def _lists(self, character: str) -> bool:
        return (
            any(first <= character <= last for first, last in self.ranges)
            or any(each.has(character) for each in self.sets)
            or (
                bool(self.categories)
                and unicodedata.category(character).startswith(self.categories)
            )
        )


class Assertion(Enum):
    """A condition on the place between two characters."""

    TEXT_BEGIN = "\\A"
    TEXT_END = "\\z"
    LINE_BEGIN = "^"
    LINE_END = "$"
    WORD_BOUNDARY = "\\b"
    NO_WORD_BOUNDARY = "\\B"


class NodeSequence(NamedTuple):
    """Expressions that follow each other; none is the empty text."""

    nodes: tuple[SyntaxNode, ...]


class Alternatives(NamedTuple):
    """Expressions of which one matches."""

    nodes: tuple[SyntaxNode, ...]


class Repeated(NamedTuple):
    """An expression that matches `least` to `most` times; None: any number."""

    node: SyntaxNode
    least: int
    most: int | None


SyntaxNode: TypeAlias = "CharacterSet | Assertion | NodeSequence | Alternatives | Repeated"


class Flags(NamedTuple):
    """The flags in effect: i, m and s; U has no meaning for a match of the whole text."""

    ignores_case: bool = False
    is_multiline: bool = False
    dot_has_newline: bool = False


WORD = CharacterSet((("0", "9"), ("A", "Z"), ("a", "z"), ("_", "_")))
DIGIT = CharacterSet((("0", "9"),))
SPACE = CharacterSet((("\t", "\n"), ("\f", "\r"), (" ", " ")))
PERL = {"d": DIGIT, "s": SPACE, "w": WORD}
PERL |= {name.upper(): each._replace(is_negated=True) for name, each in PERL.items()}

POSIX = {
    "alnum": "09AZaz", "alpha": "AZaz", "ascii": "\0\x7f", "blank": "\t\t  ",
    "cntrl": "\0\x1f\x7f\x7f", "digit": "09", "graph": "!~", "lower": "az", "print": " ~",
    "punct": "!/:@[`{~", "space": "\t\r  ", "upper": "AZ", "word": "09AZaz__", "xdigit": "09AFaf",
}  # fmt: skip
"""Classes such as `[:alpha:]`: pairs of the first and the last character of a range."""

ESCAPES = {"a": "\a", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
ASSERTIONS = {
    "A": Assertion.TEXT_BEGIN, "z": Assertion.TEXT_END, "b": Assertion.WORD_BOUNDARY,
    "B": Assertion.NO_WORD_BOUNDARY,
}  # fmt: skip
CATEGORIES = frozenset(
    "C Cc Cf Co Cs L Ll Lm Lo Lt Lu M Mc Me Mn N Nd Nl No P Pc Pd Pe Pf Pi Po Ps S Sc Sk Sm So Z Zl"
    " Zp Zs".split()
)


def parse(text: str) -> SyntaxNode:
    """Return the tree of an expression; raise InvalidRegularExpression."""
    if len(text) > LENGTH_MAX:
        raise InvalidRegularExpression(
            f"The regular expression has {len(text)} characters; at most {LENGTH_MAX} are allowed."
        )
    return ExpressionParser(text).parse()


class ExpressionParser:
    """A parser by recursive descent, with one method for each rule."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._position = 0
        self._depth = 0
        self._flags = Flags()

    def parse(self) -> SyntaxNode:
        """Return the tree of the whole text."""
        node = self._alternatives()
        if self._position < len(self._text):
            raise self._error("unexpected )")
        return node

    def _error(self, reason: str) -> InvalidRegularExpression:
        return InvalidRegularExpression(
            f"Invalid regular expression, at character {self._position}: {reason}."
        )

    def _next(self, size: int = 1) -> str:
        """Return the next characters, and pass over them."""
        found = self._text[self._position : self._position + size]
        if len(found) < size:
            raise self._error("it ends too early")
        self._position += size
        return found

    def _peeks(self, text: str) -> bool:
        return self._text.startswith(text, self._position)

    def _takes(self, text: str) -> bool:
        if not self._peeks(text):
            return False
        self._position += len(text)
        return True

    def _until(self, end: str) -> str:
        """Return the text before `end`, and pass over both."""
        at = self._text.find(end, self._position)
        if at < 0:
            raise self._error(f"{end} is missing")
        found = self._text[self._position : at]
        self._position = at + len(end)
        return found

    # -- rules -------------------------------------------------------------------------------

    def _alternatives(self) -> SyntaxNode:
        flags = self._flags
        nodes = [self._sequence()]
        while self._takes("|"):
            nodes.append(self._sequence())
        self._flags = flags  # those that were set within a group end with it
        return nodes[0] if len(nodes) == 1 else Alternatives(tuple(nodes))

    def _sequence(self) -> SyntaxNode:
        nodes: list[SyntaxNode] = []
        while self._position < len(self._text) and not self._peeks("|") and not self._peeks(")"):
            if self._takes("\\Q"):
                nodes += self._quoted()
            elif not self._sets_flags():
                nodes.append(self._repetitions(self._atom()))
        return nodes[0] if len(nodes) == 1 else NodeSequence(tuple(nodes))

    def _quoted(self) -> list[SyntaxNode]:
        end = self._text.find("\\E", self._position)
        quoted = self._text[self._position : end if end >= 0 else None]
        self._position += len(quoted) + (2 if end >= 0 else 0)
        nodes: list[SyntaxNode] = [self._literal(each) for each in quoted]
        if nodes:
            nodes[-1] = self._repetitions(nodes[-1])
        return nodes

    def _repetitions(self, node: SyntaxNode) -> SyntaxNode:
        counts = self._counts()
        if counts is None:
            return node
        self._takes("?")  # lazy
        if self._counts() is not None:
            raise self._error("a quantifier follows another one")
        return Repeated(node, *counts)

    def _counts(self) -> tuple[int, int | None] | None:
        for sign, counts in (("*", (0, None)), ("+", (1, None)), ("?", (0, 1))):
            if self._takes(sign):
                return counts
        if not self._peeks("{"):
            return None
        end = self._text.find("}", self._position)
        least, comma, most = self._text[self._position + 1 : max(end, 0)].partition(",")
        is_count = _is_number(least) and (not most or _is_number(most))
        if end < 0 or not is_count:
            return None  # a literal brace
        self._position = end + 1
        low = int(least)
        high = int(most) if most else (None if comma else low)
        if max(low, high or 0) > REPEAT_MAX or (high is not None and high < low):
            raise self._error(
                f"the bounds of {{{least}{comma}{most}}} are reversed or above {REPEAT_MAX}"
            )
        return low, high

    def _atom(self) -> SyntaxNode:
        character = self._next()
        match character:
            case "(":
                return self._group()
            case "[":
                return self._class()
            case ".":
                newline = () if self._flags.dot_has_newline else (("\n", "\n"),)
                return CharacterSet(newline, is_negated=True)
            case "^":
                is_line = self._flags.is_multiline
                return Assertion.LINE_BEGIN if is_line else Assertion.TEXT_BEGIN
            case "$":
                return Assertion.LINE_END if self._flags.is_multiline else Assertion.TEXT_END
            case "\\":
                if self._position < len(self._text) and self._text[self._position] in ASSERTIONS:
                    return ASSERTIONS[self._next()]
                return self._escape()._replace(ignores_case=self._flags.ignores_case)
            case "*" | "+" | "?":
                raise self._error("a quantifier follows no expression")
        return self._literal(character)

    def _literal(self, character: str) -> CharacterSet:
        return CharacterSet(((character, character),), ignores_case=self._flags.ignores_case)

    # -- groups ------------------------------------------------------------------------------

    def _group(self) -> SyntaxNode:
        flags = self._flags
        if self._takes("?P<") or self._takes("?<"):
            name = self._until(">")
            if not (name.isascii() and name.replace("_", "a").isalnum()):
                raise self._error("a group has an invalid name")
        elif self._takes("?"):
            self._flags = self._read_flags(":")
        self._depth += 1
        if self._depth > NESTING_MAX:
            raise self._error(f"more than {NESTING_MAX} groups are nested")
        node = self._alternatives()
        self._depth -= 1
        if not self._takes(")"):
            raise self._error(") is missing")
        self._flags = flags
        return node

    def _sets_flags(self) -> bool:
        """Read flags for the rest of the group, such as `(?i)`, and return whether there were."""
        begin = self._position
        if not self._takes("(?"):
            return False
        end = self._text.find(")", begin)
        letters = self._text[self._position : max(end, 0)]
        if end < 0 or not letters or not set(letters) <= set("imsU-"):
            self._position = begin
            return False
        self._flags = self._read_flags(")")
        return True

    def _read_flags(self, end: str) -> Flags:
        letters = self._until(end)
        on, minus, off = letters.partition("-")
        if not set(on + off) <= set("imsU") or (minus and not off):
            raise self._error("invalid flags or an unsupported group")
        names = {"i": "ignores_case", "m": "is_multiline", "s": "dot_has_newline"}
        changes = {names[each]: each in on for each in on + off if each in names}
        return self._flags._replace(**changes)

    # -- characters --------------------------------------------------------------------------

    def _class(self) -> CharacterSet:
        is_negated = self._takes("^")
        ranges: list[tuple[str, str]] = []
        sets: list[CharacterSet] = []
        is_first = True
        while is_first or not self._takes("]"):
            is_first = False
            if self._takes("[:"):
                sets.append(self._posix_class())
                continue
            first = self._class_member()
            last = first
            if self._peeks("-") and not self._peeks("-]"):
                self._next()
                last = self._class_member()
            if isinstance(first, CharacterSet) and first is last:
                sets.append(first)
            elif isinstance(first, CharacterSet) or isinstance(last, CharacterSet):
                raise self._error("a range begins or ends with a class")
            elif last < first:
                raise self._error("a range ends before it begins")
            else:
                ranges.append((first, last))
        return CharacterSet(tuple(ranges), (), tuple(sets), is_negated, self._flags.ignores_case)

    def _class_member(self) -> str | CharacterSet:
        """Return one character, or a class such as `\\d`."""
        character = self._next()
        if character != "\\":
            return character
        found = self._escape()
        is_character = (
            len(found.ranges) == 1
            and found.ranges[0][0] == found.ranges[0][1]
            and not found.is_negated
        )
        return found.ranges[0][0] if is_character else found

    def _posix_class(self) -> CharacterSet:
        is_negated = self._takes("^")
        pairs = POSIX.get(self._until(":]"))
        if pairs is None:
            raise self._error("unknown character class")
        ranges = tuple(zip(pairs[::2], pairs[1::2], strict=True))
        return CharacterSet(ranges, is_negated=is_negated)

    def _escape(self) -> CharacterSet:
        """Return the characters that an escape sequence matches; its backslash was read."""
        character = self._next()
        if character in PERL:
            return PERL[character]
        if character in "pP":
            return self._category(is_negated=character == "P")
        if character == "x":
            digits = self._until("}") if self._takes("{") else self._next(2)
            return self._of_code(digits, 16)
        if character == "0" or (character in "1234567" and self._has_octal_digit()):
            begin = self._position - 1
            while self._position - begin < 3 and self._has_octal_digit():
                self._position += 1
            return self._of_code(self._text[begin : self._position], 8)
        literal = ESCAPES.get(character, character)
        if literal is character and (character.isalnum() or not character.isascii()):
            raise self._error(f"\\{character} is not an escape sequence")
        return CharacterSet(((literal, literal),))

    def _has_octal_digit(self) -> bool:
        return self._position < len(self._text) and self._text[self._position] in "01234567"

    def _of_code(self, digits: str, radix: int) -> CharacterSet:
        try:
            if not digits.isalnum():
                raise ValueError
            character = chr(int(digits, radix))
        except (ValueError, OverflowError):
            raise self._error("invalid character code") from None
        return CharacterSet(((character, character),))

    def _category(self, *, is_negated: bool) -> CharacterSet:
        name = self._until("}") if self._takes("{") else self._next()
        if name.startswith("^"):
            name, is_negated = name[1:], not is_negated
        if name == "Any":
            return CharacterSet(is_negated=not is_negated)
        if name not in CATEGORIES:
            raise self._error(f"unknown character category {name}")
        return CharacterSet(categories=(name,), is_negated=is_negated)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 5
