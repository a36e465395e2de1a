"""All logs of a node: its directories, opening, housekeeping, partition transfer."""
