"""`probe serve`: the host server, one a host and user, on a unix socket and on request on TCP."""

from __future__ import annotations

import click

__all__ = ["command"]


@click.command("serve")
@click.option("--listen", metavar="HOST:PORT", help="Also listen on TCP, with a token.")
@click.option("--unix", "path", metavar="PATH", help="The unix socket to listen on instead of the usual one.")
@click.option(
    "--linger",
    "linger_s",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    help="End when this host has had no living target for so long; as PROBE_LISTEN starts it.",
)
@click.option(
    "--insecure",
    is_flag=True,
    envvar="PROBE_INSECURE",
    help="Ask for no token: every user of this host can then run code in your targets. Loopback addresses only.",
)
@click.option(
    "--read-memory",
    "read_memory_mb",
    envvar="PROBE_READ_MEMORY",
    type=click.IntRange(min=1),
    default=512,
    show_default=True,
    metavar="MB",
    help="How much memory a query may use that comes with the token for reading.",
)
@click.option(
    "--read-timeout",
    "read_timeout_s",
    envvar="PROBE_READ_TIMEOUT",
    type=click.FloatRange(min=0, min_open=True),
    default=10.0,
    show_default=True,
    metavar="SECONDS",
    help="How long such a query may run.",
)
@click.option("--tls-cert", envvar="PROBE_TLS_CERT", metavar="FILE", help="TLS on TCP, with this certificate (PEM).")
@click.option("--tls-key", envvar="PROBE_TLS_KEY", metavar="FILE", help="Its key, if that is in another file.")
@click.option(
    "--tls-client-ca",
    envvar="PROBE_TLS_CLIENT_CA",
    metavar="FILE",
    help="Only clients whose certificate this one has signed; they need a token as well.",
)
def command(
    listen: str | None,
    path: str | None,
    linger_s: float | None,
    insecure: bool,
    read_memory_mb: int,
    read_timeout_s: float,
    tls_cert: str | None,
    tls_key: str | None,
    tls_client_ca: str | None,
) -> int:
    """Serve every target of this host until SIGINT or SIGTERM.

    Its unix socket is for this user alone (and root), and `probe PID …` finds it by itself. Over TCP a token is asked
    for: the first start makes one for everything in ~/.config/probe/token, and one for reading only in token.read
    beside it. `probe` finds them by itself; PROBE_TOKEN_FILE names another file, PROBE_TOKEN is the token itself.

    With --tls-cert the endpoint is https://HOST:PORT. Clients check the certificate by the system's, or by PROBE_CA.
    """
    from probe_agent.server.serve import serve

    if tls_cert is None and (tls_key or tls_client_ca):
        raise click.UsageError("a key or a CA for TLS is of no use without a certificate: --tls-cert FILE")
    tls = (tls_cert, tls_key, tls_client_ca) if tls_cert else None
    return serve(listen, path, linger_s, insecure=insecure, tls=tls, readers=(read_memory_mb, read_timeout_s))
