"""Live tables, one a file: adding one is adding a file."""
