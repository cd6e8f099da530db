"""The endpoints, one a file: each file has a `router`, and adding one is adding a file."""
