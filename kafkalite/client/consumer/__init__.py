"""The consumer: fetches over TCP or from segment files, decodes into messages, columns and
tables.
"""
