"""The host server: the HTTP API over all targets of a host and user, in a process beside them."""
