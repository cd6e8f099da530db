"""`probe serve`: the host server, one a host and user, on a unix socket and on request on TCP."""

from __future__ import annotations

import click

from probe_agent.errors import BadRequest

__all__ = ["command"]


@click.command("serve")
@click.option("--listen", metavar="HOST:PORT", help="Also listen on TCP, with a token.")
@click.option("--unix", "path", metavar="PATH", help="The unix socket to listen on instead of the usual one.")
@click.option(
    "--linger",
    "linger_s",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    help="End after this long without a living target, as a server that PROBE_LISTEN starts.",
)
@click.option(
    "--insecure",
    is_flag=True,
    envvar="PROBE_INSECURE",
    help="Need no token: every user of this host can then run code in your targets. Loopback addresses only.",
)
@click.option(
    "--read-memory",
    "read_memory_mb",
    envvar="PROBE_READ_MEMORY",
    type=click.IntRange(min=1),
    default=512,
    show_default=True,
    metavar="MB",
    help="Memory limit of a query with the read-only token.",
)
@click.option(
    "--read-timeout",
    "read_timeout_s",
    envvar="PROBE_READ_TIMEOUT",
    type=click.FloatRange(min=0, min_open=True),
    default=10.0,
    show_default=True,
    metavar="SECONDS",
    help="Time limit of a query with the read-only token.",
)
@click.option("--tls-cert", envvar="PROBE_TLS_CERT", metavar="FILE", help="TLS on TCP, with this certificate (PEM).")
@click.option("--tls-key", envvar="PROBE_TLS_KEY", metavar="FILE", help="Its key, if that is in another file.")
@click.option(
    "--tls-client-ca",
    envvar="PROBE_TLS_CLIENT_CA",
    metavar="FILE",
    help="Accept only clients with a certificate of this CA; they need a token as well.",
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

    Its unix socket is open to this user (and root) only, and `probe PID …` finds it by itself. TCP needs a token: the
    first start writes one with full access to ~/.config/probe/token, and a read-only one to token.read beside it.
    `probe` finds them by itself; PROBE_TOKEN_FILE names another file, PROBE_TOKEN is the token itself.

    With --tls-cert the endpoint is https://HOST:PORT. Clients verify the certificate against the system's CAs, or
    against PROBE_CA.
    """
    from probe_agent.server.serve import serve  # a door: FastAPI and DuckDB, which --help does without

    if tls_cert is None and (tls_key or tls_client_ca):
        raise BadRequest("--tls-key and --tls-client-ca need a certificate", "add --tls-cert FILE")
    tls = (tls_cert, tls_key, tls_client_ca) if tls_cert else None
    return serve(listen, path, linger_s, insecure=insecure, tls=tls, readers=(read_memory_mb, read_timeout_s))
