"""The record format: batches of records, the codecs they travel in, and slices of their files."""
