"""Sources that record on the training thread, one file per source, each with a class `Source`."""
