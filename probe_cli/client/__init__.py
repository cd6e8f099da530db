"""Talking to one endpoint: three transports (in-process, unix socket, TCP), one API.

The folder imports httpx, and the web app for a PID, only when a client is opened.
"""

from .client import Client, Data
from .connect import open_client, open_host

__all__ = ["Client", "Data", "open_client", "open_host"]
