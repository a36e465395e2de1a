"""One table of scenarios, run through real clients: what they do to Apache Kafka they do to us."""
