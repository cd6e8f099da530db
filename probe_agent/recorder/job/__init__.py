"""The job that this process is a rank of: rank, role, and addresses of the other ranks."""
