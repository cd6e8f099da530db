"""Memory of one target or of all ranks: what takes it, whether it grows, and when it is full."""
