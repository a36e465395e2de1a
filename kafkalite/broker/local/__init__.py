"""Programs of the same host: the local listener, shared-memory rings, and direct reads."""
