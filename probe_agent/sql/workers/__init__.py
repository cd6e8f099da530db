"""Query workers: the processes in which statements run, and the server's side of them."""

from .pool import Asker, Reply, Workers

__all__ = ["Asker", "Reply", "Workers"]
