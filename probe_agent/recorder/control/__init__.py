"""The recorder's unix socket and its replies."""
