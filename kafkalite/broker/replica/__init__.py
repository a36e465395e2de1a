"""Partitions of a node: appends, fetches, delayed requests, and log reconciliation."""
