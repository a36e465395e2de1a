"""Storage: the partitions of one host as files, in Kafka's own formats."""
