"""Files and directories of a log: calls to the disk, names, checkpoints, flushes, deletion."""
