"""Source files that the rules read."""

from tools.architecture import PACKAGE

PYTHON_FOLDERS = (PACKAGE, "tests", "benchmarks", "tools", "spark")


def source_files(tree):
    yield from python_files(tree, *PYTHON_FOLDERS)
    yield from ext_files(tree)


def ext_files(tree, *suffixes):
    """Yield the sources in ext/<layer>/ with one of these suffixes; without any, all of them."""
    wanted = suffixes or (".pyx", ".pxd", ".pxi", ".h")
    for path in sorted((tree.root / "ext").glob("*/*")):
        if path.suffix in wanted:
            yield path


def python_files(tree, *folders):
    for folder in folders:
        yield from sorted((tree.root / folder).rglob("*.py"))


def shown(tree, path):
    return path.relative_to(tree.root)
