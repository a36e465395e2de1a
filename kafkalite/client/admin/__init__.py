"""Administration of a cluster over the Kafka protocol."""
