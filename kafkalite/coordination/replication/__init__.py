"""Decisions about the replicas of partitions: elections, ISR changes, reassignments."""
