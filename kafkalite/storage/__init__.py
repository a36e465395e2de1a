"""DISK: one host's partitions as files, in Kafka's own formats."""
