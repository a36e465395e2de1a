"""Hook of mkdocs: the files of the site, each at its path in the tree.

The site has every page of tools/doc_pages.py and every other file that one of them links, such as
a plot or an example.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

NESTED_ITEM = re.compile(r"^ {2,3}(?=[-*] )", re.MULTILINE)
ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))  # mkdocs runs this file without its directory

import doc_pages  # noqa: E402


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Replace the files below docs/ by all pages and by what they link."""
    for file in list(files):
        if file.src_dir == config.docs_dir:
            files.remove(file)
    pages = doc_pages.pages()
    linked = {link.path for page in pages for link in doc_pages.links(page)}
    for path in sorted({*pages, *linked}):
        files.append(File.generated(config, path, abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, **_: object) -> str:
    """Indent nested list items by four columns, as mkdocs requires and code hosts do not."""
    return NESTED_ITEM.sub("    ", markdown)
