"""What the compiled functions do, said once more in plain Python: never shipped, only compared."""
