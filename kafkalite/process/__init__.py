"""Processes: starting, watching and ending the processes of a broker."""
