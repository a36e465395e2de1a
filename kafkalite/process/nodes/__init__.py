"""Processes of the nodes, as the launcher sees them: fork, readiness, control channel, exit."""
