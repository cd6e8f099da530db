"""Clients for endpoints over unix sockets and TCP. Loads httpx, so commands import it as they run."""

from .client import Client, Data
from .connect import open_client, open_clients, open_host, server_of

__all__ = ["Client", "Data", "open_client", "open_clients", "open_host", "server_of"]
