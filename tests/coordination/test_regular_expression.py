"""Regular expressions of RE2's syntax: compared with Python's, and hostile ones."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafkalite.coordination.regular_expression import STATES_MAX, RegularExpression
from kafkalite.coordination.regular_syntax import LENGTH_MAX, NESTING_MAX
from kafkalite.errors import InvalidRegularExpression


def matches(pattern, text):
    """Return whether the whole text matches."""
    work = RegularExpression(pattern).matches(text)
    while True:
        try:
            next(work)
        except StopIteration as ended:
            return ended.value


@pytest.mark.parametrize(
    "pattern, matching, other",
    [
        ("", [""], ["a"]),
        ("payments", ["payments"], ["payments-1", "my-payments", ""]),
        ("payments-.*", ["payments-", "payments-1"], ["payments", "payments-\n"]),
        ("(?s)a.b", ["a\nb", "axb"], ["ab"]),
        ("a|bc|", ["a", "bc", ""], ["b", "abc"]),
        ("^a$", ["a"], ["a\n", "ba"]),
        ("a^b|a$b", [], ["ab", "a\nb"]),
        ("(?m)a$\n^b", ["a\nb"], ["ab", "a\n\nb"]),
        (r"\Aa\z", ["a"], ["a\n"]),
        (r"a\b-\bb", ["a-b"], ["ab"]),
        (r"a\Bb", ["ab"], ["a-b"]),
        (r"\bé", [], ["é"]),
        ("(?i)abC[d-f]", ["ABCD", "abcF"], ["abcG"]),
        ("(?i:a)b", ["Ab", "ab"], ["AB"]),
        ("(?i)a(?-i)b", ["Ab"], ["AB"]),
        ("((?i)a)b", ["Ab"], ["AB"]),
        ("(?P<name>a+)(?:b)(?<other>c)", ["aabc"], ["abbc"]),
        ("a{3}", ["aaa"], ["aa", "aaaa"]),
        ("a{2,}", ["aa", "aaaaa"], ["a"]),
        ("a{2,3}?b??", ["aa", "aaab"], ["a", "aabb"]),
        ("a{,2}", ["a{,2}"], ["a", "aa"]),
        ("a{b", ["a{b"], ["a"]),
        ("(a*)*", ["", "aaa"], ["b"]),
        ("(a|b)*c{0}", ["abab", ""], ["c"]),
        (r"[\w.-]+", ["a.b-c_9"], ["a b", ""]),
        (r"[^\d\s]", ["a", "-"], ["5", " "]),
        ("[]a]", ["]", "a"], ["b"]),
        ("[^]a]", ["b"], ["]", "a"]),
        ("[a-]", ["a", "-"], ["b"]),
        ("[[:alpha:][:^digit:]]", ["x", "-"], ["7"]),
        (r"\Qa.b\E+", ["a.b", "a.bbb"], ["axb"]),
        (r"\Qa|(", ["a|("], ["a"]),
        (r"\x41\x{1F600}\101\t\.", ["A\U0001F600A\t."], ["A"]),
        (r"\p{Lu}\pN\P{L}\p{^L}", ["É5--"], ["é5--", "E5a-"]),
        (r"\d\D\s\S\w\W", ["1a\tb_-"], ["٣a\tb_-"]),
    ],
)
def test_expression_matches_whole_texts(pattern, matching, other):
    assert [text for text in matching if not matches(pattern, text)] == []
    assert [text for text in other if matches(pattern, text)] == []


@pytest.mark.parametrize(
    "pattern",
    [
        "(", ")", "a)", "(a", "[", "[a", "[b-a]", "a**", "a+*", "a{2}{3}", "*", "|*", "(*)", "\\",
        "\\1", r"(a)\1", r"\8", r"\y", r"\C", r"\p{Greek}", r"\p", r"\x4", r"\x{110000}",
        "(?=a)", "(?!a)", "(?<=a)b", "(?>a)", "(?P=n)", "(?#c)", "(?i", "(?z)", "(?P<n",
        "(?P<a-b>c)", "a{1001}", "a{3,2}", "[[:letters:]]", r"[\d-z]", r"\é",
    ],
)  # fmt: skip
def test_invalid_or_unsupported_expression_is_refused(pattern):
    with pytest.raises(InvalidRegularExpression):
        RegularExpression(pattern)


@pytest.mark.parametrize(
    "pattern",
    [
        "a" * (LENGTH_MAX + 1),
        "(" * (NESTING_MAX + 1) + ")" * (NESTING_MAX + 1),
        "(" * (LENGTH_MAX - 1),
        "((a{1000}){1000}){1000}",
        f"(ab){{{STATES_MAX // 2 + 1}}}",
        "(((a{10}){10}){10}){10}",
    ],
)
def test_expression_that_is_too_large_is_refused(pattern):
    with pytest.raises(InvalidRegularExpression):
        RegularExpression(pattern)


HOSTILE = [
    ("(a+)+b", "a" * 300),
    ("(a|a)*b", "a" * 300),
    ("(.*.*.*.*.*)*x", "a" * 300),
    ("(a?){200}a{200}", "a" * 300),
    ("(.*a){200}b", "a" * 300),
    ("[" + "".join(map(chr, range(0x100, 0x800))) + "]{0,400}", "a" * 300),
]


@pytest.mark.parametrize("pattern, text", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_expression_is_matched_in_a_step_per_character(pattern, text):
    # A step is one character, which costs each state once.
    assert sum(1 for _ in RegularExpression(pattern).matches(text)) <= len(text)


def test_long_text_is_matched_in_steps():
    work = RegularExpression("a*").matches("a" * 32_000)
    assert 30 < sum(1 for _ in work) < 40


# The syntax that RE2 and Python have in common, with the same meaning in ASCII.
ATOMS = st.sampled_from(["a", "b", "-", ".", "[ab]", "[^a]", r"\w", r"\D", r"\b", "^", "$", "()"])


def combined(inner):
    return st.one_of(
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, inner).map(lambda both: f"(?:{both[0]}|{both[1]})"),
        st.tuples(inner, st.sampled_from(["*", "+", "?", "{2}", "{1,}", "{0,2}", "*?"])).map(
            lambda both: f"(?:{both[0]}){both[1]}"
        ),
    )


@settings(max_examples=300)
@given(st.recursive(ATOMS, combined, max_leaves=8), st.text("ab-\n", max_size=8))
def test_expressions_match_as_in_python(pattern, text):
    expected = re.compile(pattern.replace("$", r"\Z"), re.ASCII).fullmatch(text) is not None
    assert matches(pattern, text) == expected, (pattern, text)
