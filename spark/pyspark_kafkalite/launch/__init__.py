"""Starts Spark: selects a Java, completes the environment and the session, and runs jobs."""
