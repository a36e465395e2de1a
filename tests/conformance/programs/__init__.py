"""The Python clients as programs that driven.py drives."""
