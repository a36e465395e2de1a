"""Documentation pages: which Markdown files there are, their links and their anchors.

tests/test_docs.py checks the links; tools/doc_site.py puts the pages and the files that they link
into a site.  A link names a file, so that it works on a code host and on the site alike.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

ROOT = Path(__file__).resolve().parent.parent
PATTERNS = (
    "*.md",
    "docs/**/*.md",
    "benchmarks/results/**/*.md",
    "ext/*.md",
    "kafkalite/gateway/README.md",
)
FENCE = re.compile(r"^(```+|~~~+).*?^\1[ ]*$", re.DOTALL | re.MULTILINE)
CODE = re.compile(r"(`+)(?!`).+?(?<!`)\1(?!`)", re.DOTALL)
LINK = re.compile(r"\]\(<?([^()\s>]+)>?(?:\s+\"[^\"]*\")?\)")
LINK_TEXT = re.compile(r"!?\[([^\[\]]*)\]\([^()]*\)")
REFERENCE = re.compile(r"^\[[^\]]+\]:\s+(\S+)", re.MULTILINE)
HEADING = re.compile(r"^#{1,6}\s+(.*?)\s*#*\s*$", re.MULTILINE)
SCHEME = re.compile(r"[a-z][a-z0-9+.-]*:")


class Link(NamedTuple):
    """A link to another file of the tree, or to an anchor."""

    page: str
    target: str
    """As written, with its anchor."""
    path: str
    """The file, from the root; it begins with `..` if it is outside."""
    anchor: str


def pages(root: Path = ROOT) -> list[str]:
    """Return the paths of all pages from the root, sorted."""
    return sorted(
        path.relative_to(root).as_posix() for pattern in PATTERNS for path in root.glob(pattern)
    )


def links(page: str, root: Path = ROOT) -> Iterator[Link]:
    """Yield the relative links of a page; code and links with a scheme are left out."""
    text = CODE.sub("", FENCE.sub("", (root / page).read_text()))
    for target in LINK.findall(text) + REFERENCE.findall(text):
        if SCHEME.match(target):
            continue
        name, _, anchor = unquote(target).partition("#")
        path = posixpath.normpath(posixpath.join(posixpath.dirname(page), name)) if name else page
        yield Link(page, target, path, anchor)


def anchors(page: str, root: Path = ROOT) -> set[str]:
    """Return the anchors of a page's headings, as code hosts derive them."""
    found: set[str] = set()
    for heading in HEADING.findall(FENCE.sub("", (root / page).read_text())):
        first = slug = slug_of(LINK_TEXT.sub(r"\1", heading))
        count = 0
        while slug in found:
            count += 1
            slug = f"{first}-{count}"
        found.add(slug)
    return found


def slug_of(heading: str) -> str:
    """Return the anchor of a heading: lower case, without punctuation, hyphens for spaces."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def broken(root: Path = ROOT) -> Iterator[str]:
    """Yield a message for each link whose file or anchor does not exist."""
    for page in pages(root):
        for link in links(page, root):
            where = f"{page}: the link to {link.target}"
            if link.path.startswith("..") or not (root / link.path).is_file():
                yield f"{where} names no file; link to a file, not to a directory"
            elif link.anchor and (
                not link.path.endswith(".md") or link.anchor not in anchors(link.path, root)
            ):
                yield f"{where} names no heading of {link.path}"
