"""Coordinators hosted by a node: their journals, the groups and producer ids."""
