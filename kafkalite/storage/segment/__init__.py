"""Segments of a log: records, their indexes, and the ordered set of segments."""
