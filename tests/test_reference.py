"""The reference pages match the declarations they are generated from."""

import pytest

from tools import gen_reference


@pytest.mark.parametrize("name", gen_reference.pages())
def test_reference_page_is_current(name):
    written = gen_reference.PAGES / name
    assert written.read_text() == gen_reference.pages()[name], "run: make reference"


def test_table_cell_escapes_separators():
    _, _, row = gen_reference.table(("a", "b"), [("x|y", "one", "two")])
    assert row == r"| x\|y | one two |"
