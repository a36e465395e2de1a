"""The controller, on this node or another, its metadata log, and the workers it knows."""
