"""Conformance: one table of scenarios, run through real clients, which Apache Kafka passes too."""
