"""Assignment: the topics and partitions of the cluster, and their distribution over members."""
