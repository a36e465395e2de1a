"""Decisions about the replicas of partitions: elections, ISR changes, reassignments.

Left out: more than one replica in the broker.  Only the simulation makes these decisions
(tests/simulation/replication_simulation.py).
"""
