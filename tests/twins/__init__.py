"""Plain-Python twins of the compiled functions: not shipped, for comparison only."""
