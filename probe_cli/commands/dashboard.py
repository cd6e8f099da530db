"""`probe … dashboard`: the pages of a host server, in a browser."""

from __future__ import annotations

import os
import socket
import sys
import tempfile
import time
import webbrowser
from urllib.parse import urlsplit

import click

from probe_agent.wire import CodeRequest, PageCode, TargetList
from probe_cli.client import Client
from probe_cli.endpoint import Endpoint, TcpServer, ThisHost, TlsServer
from probe_cli.messages import remark
from probe_cli.options import timeout_option
from probe_cli.session import Session

__all__ = ["command"]

#: A browser has read the file that leads it to the page by then.
READ_S = 3.0
_FORWARD = """<!doctype html><meta charset="utf-8"><meta name="referrer" content="no-referrer">
<meta http-equiv="refresh" content="0;url={url}"><title>Probe</title><a href="{url}">dashboard</a>
"""


@click.command("dashboard")
@click.option("--read", "may_read", is_flag=True, help="A page without controls: no console, no profiles.")
@click.option("--no-open", is_flag=True, help="Only print the address; open no browser.")
@timeout_option(10.0, "How long the host server may take to answer.")
@click.pass_obj
def command(session: Session, may_read: bool, no_open: bool, timeout_s: float) -> int:
    """Open the dashboard of a host server in a browser, and print its address.

    The address opens the page once, within two minutes, and is worthless afterwards; to open another browser, run this
    again. It lets in with the rights of your token, or of the unix socket; --read gives an address for somebody who may
    look and change nothing.

    A server that is on its unix socket alone opens a port on loopback for as long as the page is in use. On another
    host, or over ssh, the line `ssh -L` brings that port to your own.
    """

    async def question(client: Client) -> tuple[PageCode, str]:
        wanted = CodeRequest("read" if may_read else "control")
        return await client.send(PageCode, "POST", "/v1/dashboard/code", wanted), await _job(client)

    session.named = session.named or (ThisHost(),)
    answers = session.ask(question, timeout_s=timeout_s, of_many=True)
    for endpoint, (code, job) in answers.answered[:1]:
        address = _address(endpoint, code)
        url = f"{address}/#code={code.code}" + (f"&job={job}" if job else "")
        print(url, flush=True)
        if code.role == "read" and not may_read:
            remark("with this token the page can read, and control nothing")
        if ssh := _ssh_line(endpoint, address, code.host):
            remark(f"from another machine: {ssh}")
        if not no_open and _has_browser():
            _open(url)
    return answers.exit_code


async def _job(client: Client) -> str:
    """Return the job of the target that was named; empty where a whole host was, or where that is not known."""
    chosen = client.endpoint.selector
    if not chosen:
        return ""
    targets = (await client.get(TargetList, "/v1/targets")).targets
    wanted = chosen.get("job", "")
    if "pid" in chosen or "rank" in chosen:
        of_it = [one for one in targets if str(one.pid if "pid" in chosen else one.rank) in chosen.values()]
    else:
        of_it = list(targets)
    jobs = {one.job for one in of_it if one.job.startswith(wanted)}
    living = {one.job for one in of_it if one.alive} & jobs
    jobs = living or jobs
    return jobs.pop() if len(jobs) == 1 else ""


def _address(endpoint: Endpoint, code: PageCode) -> str:
    """Return the URL of the pages: of a TCP server as the user has named it."""
    if isinstance(endpoint, TcpServer):
        return f"http{'s' * isinstance(endpoint, TlsServer)}://{endpoint.authority}"
    return code.address


def _ssh_line(endpoint: Endpoint, address: str, host: str) -> str:
    """Return the command that brings a loopback port to where the browser is; empty where the page needs none."""
    parts = urlsplit(address)
    is_elsewhere = isinstance(endpoint, TcpServer) and host != socket.gethostname()
    if parts.scheme == "https" or not (is_elsewhere or "SSH_CONNECTION" in os.environ):
        return ""
    return f"ssh -N -L {parts.port}:127.0.0.1:{parts.port} {host}  (then open the address with 127.0.0.1)"


def _has_browser() -> bool:
    has_screen = any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"))
    return sys.stdout.isatty() and has_screen and "SSH_CONNECTION" not in os.environ


def _open(url: str) -> None:
    """Open a file of ours that leads to `url`: the arguments of a process are for every user of the host to read."""
    with tempfile.NamedTemporaryFile("w", prefix="probe-", suffix=".html") as file:
        file.write(_FORWARD.format(url=url))
        file.flush()
        webbrowser.open(f"file://{file.name}")
        time.sleep(READ_S)
