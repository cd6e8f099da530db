"""`probe serve`: the host server, one a host and user, on a unix socket and on request on TCP."""

from __future__ import annotations

import click

__all__ = ["command"]


@click.command("serve", short_help="Run the host server, for all targets of this host.")
@click.option("--listen", metavar="HOST:PORT", help="Also listen on TCP; loopback addresses only.")
@click.option("--unix", "path", metavar="PATH", help="The unix socket to listen on instead of the usual one.")
@click.option(
    "--linger",
    "linger_s",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    help="End when this host has had no living target for so long; as PROBE_LISTEN starts it.",
)
def command(listen: str | None, path: str | None, linger_s: float | None) -> int:
    """Serve every target of this host until SIGINT or SIGTERM.

    Its unix socket is for this user alone, and `probe PID …` finds it by itself. TCP has no authentication yet, so
    only loopback is accepted: whoever can log in to this host can then ask and run code in your targets.
    """
    from probe_cli.serving import serve

    return serve(listen, path, linger_s)
