"""State of a log beside its records: producers, leader epochs, what is flushed, settings."""
