"""Probe on an NVIDIA GPU, against measurements that are not its own. See CONTRIBUTING.md for how to run it."""
