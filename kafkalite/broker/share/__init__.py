"""Share groups at the leaders of partitions: records in flight, sessions, and fetches."""
