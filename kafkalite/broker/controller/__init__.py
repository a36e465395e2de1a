"""The controller, local or remote, the metadata log, and the supervisor's view of the workers."""
