"""Offsets: the committed offsets of all groups, and the records of a commit."""
