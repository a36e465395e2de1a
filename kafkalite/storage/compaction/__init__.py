"""Compaction: jobs of the log cleaner, cleaning of segments, and the swap of their files."""
