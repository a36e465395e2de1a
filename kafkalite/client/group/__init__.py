"""Group: membership of a consumer group, without the records that are read."""
