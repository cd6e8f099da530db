"""Sources that sample on the recorder's own thread, one file per source, each with a class `Source`."""
