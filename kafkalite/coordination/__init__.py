"""Coordination: deterministic state machines without sockets, files or clocks.

A machine takes a request and returns a response and records; only replaying a record changes its
durable state.  So it is recovered by reading its log, tested with plain calls, and hosted by any
node (broker/machine_host.py writes the records and then sends the responses).
"""
