"""The record format: record batches, their compression codecs, and slices of their files."""
