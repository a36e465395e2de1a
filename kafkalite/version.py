"""Version of the package; `pyproject.toml`, the command line and the clients read it from here."""

__version__ = "0.1.0"
