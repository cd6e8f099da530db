"""The job that this process is a rank of: its rank, its role, and where the other ranks are."""
