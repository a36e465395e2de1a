"""Processes: how a node is started, watched and ended."""
