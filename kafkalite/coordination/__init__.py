"""MIND: state machines that decide, and never touch a socket, a file or a clock.

A machine is asked and answers with a response and records; only replaying a record changes it.
So it is recovered by reading its log, tested with plain calls, and hosted by any node
(broker/coordinator/coordinator_host.py writes the records and lets the responses go).
"""
