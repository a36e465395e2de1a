"""Python clients as programs, driven by driven.py."""
