"""The log of one partition: appends, reads, recovery, flushes."""
