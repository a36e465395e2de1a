"""Partitions of a node: appends, fetches, delayed requests, and logs kept as the image says."""
