"""Decoding of record sets into messages and columns, for consumers of every kind."""
