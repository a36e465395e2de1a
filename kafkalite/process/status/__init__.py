"""State of a running broker as its users see it: ready file, status.json, banner."""
