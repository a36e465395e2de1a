"""Replicas of partitions: leaders, in-sync replicas, and the decisions that change them.

Left out: more than one replica in the broker.  It uses the partition's image and its records; the
decisions are called by the simulation only (tests/simulation/replication_simulation.py).
"""
