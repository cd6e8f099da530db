"""What runs on our own thread: one file a source, each with a `Source` class that starts, ticks and stops it."""
