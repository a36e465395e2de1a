"""The log cleaner: a process that compacts the logs of all nodes.

Nodes own their logs: they choose what is cleaned, describe it as a job, and replace the segments by
the results.  This process only reads the sources by name and writes the results beside them.
"""
