"""Share groups: records in flight, and their stored state; state machines without I/O."""
