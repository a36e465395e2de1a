"""Spark's data source and sink: plans offset ranges, reads and writes them as Arrow batches."""
