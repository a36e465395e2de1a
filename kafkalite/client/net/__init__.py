"""Connections of a client to a cluster: metadata, TCP and local sockets, deadlines, settings."""
