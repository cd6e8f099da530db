"""What runs on the training thread: one file a source, each with a `Source` class that starts and stops it."""
