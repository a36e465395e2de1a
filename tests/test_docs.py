"""The pages of the documentation: links resolve, and Python examples are valid Python."""

import ast
import re

import pytest

from tools import doc_pages

PYTHON = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def test_every_link_names_a_file_and_a_heading():
    assert list(doc_pages.broken()) == []


def test_every_page_is_found_from_the_index_or_the_readme():
    found, wanted = set(), {"README.md", "docs/index.md"}
    while wanted:
        page = wanted.pop()
        found.add(page)
        wanted |= {link.path for link in doc_pages.links(page) if link.path.endswith(".md")} - found
    assert [page for page in doc_pages.pages() if page.startswith("docs/")] == sorted(
        page for page in found if page.startswith("docs/")
    )


@pytest.mark.parametrize("page", doc_pages.pages())
def test_python_examples_are_valid_python(page):
    for example in PYTHON.findall((doc_pages.ROOT / page).read_text()):
        ast.parse(example)


@pytest.fixture
def tree(tmp_path):
    """A tree of two pages without an error."""
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/index.md").write_text(
        "# Index\n\n## What `a.b` is, and why\n\n## Twice\n## Twice\n"
    )
    (tmp_path / "README.md").write_text("# Name\n")
    return tmp_path


@pytest.mark.parametrize(
    ("link", "message"),
    [
        ("[a](docs/index.md)", None),
        ("[a](docs/index.md#what-ab-is-and-why)", None),
        ("[a](docs/index.md#twice-1)", None),
        ("[a](#name)", None),
        ("[a](https://example.org/nothing)", None),
        ("`[a](nothing.md)`", None),
        ("```\n[a](nothing.md)\n```", None),
        ("[a](nothing.md)", "nothing.md names no file"),
        ("![a](nothing.png)", "nothing.png names no file"),
        ("[a]: nothing.md", "nothing.md names no file"),
        ("[a](docs)", "docs names no file"),
        ("[a](../outside.md)", "../outside.md names no file"),
        ("[a](docs/index.md#twice-2)", "names no heading of docs/index.md"),
        ("[a](#nothing)", "names no heading of README.md"),
        ("[![a](nothing.png)](docs/index.md)", "nothing.png names no file"),
    ],
)
def test_broken_link_is_found(tree, link, message):
    (tree.parent / "outside.md").write_text("")
    (tree / "README.md").write_text(f"# Name\n\n{link}\n")
    found = list(doc_pages.broken(tree))
    assert (len(found) == 1 and message in found[0]) if message else found == []
