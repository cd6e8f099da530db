"""The endpoints, one a file: each file has a `router` and the `ROLE` it wants, and adding one is adding a file."""
