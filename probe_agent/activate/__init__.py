"""Planned activation: the recorder starts with the process, without an attach."""
