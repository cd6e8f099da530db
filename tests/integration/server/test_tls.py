"""A host server with a certificate, and clients that check it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.commands import probe

from .served import Served, serving

trustme = pytest.importorskip("trustme")


@dataclass
class Certificates:
    """PEM files: the CA's, the server's, a client's, and those of another CA."""

    ca: str
    server: str
    client: str
    other_ca: str


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    folder = tmp_path_factory.mktemp("certificates")
    ca, other = trustme.CA(), trustme.CA()
    for name, signer in (("ca", ca), ("other_ca", other)):
        signer.cert_pem.write_to_path(folder / name)
    ca.issue_cert("127.0.0.1", "localhost").private_key_and_cert_chain_pem.write_to_path(folder / "server")
    ca.issue_cert("operator@example").private_key_and_cert_chain_pem.write_to_path(folder / "client")
    return Certificates(*(str(folder / name) for name in ("ca", "server", "client", "other_ca")))


@pytest.fixture(scope="module")
def server(certificates: Certificates, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("server")
    with serving(folder, "--listen", "TCP", "--tls-cert", certificates.server) as server:
        yield server


def listing(endpoint: str, server: Served, **environ: str) -> tuple[int, str, str]:
    done = probe("-t", endpoint, "list", "--format", "json", XDG_CONFIG_HOME=str(server.tokens.parent), **environ)
    return done.returncode, done.stdout, done.stderr


def test_the_endpoint_is_https_and_its_certificate_is_checked(server: Served, certificates: Certificates) -> None:
    trusted = listing(f"https://{server.tcp}", server, PROBE_CA=certificates.ca)
    by_the_system = listing(f"https://{server.tcp}", server, SSL_CERT_FILE=certificates.ca)
    untrusted = listing(f"https://{server.tcp}", server)
    signed_by_another = listing(f"https://{server.tcp}", server, PROBE_CA=certificates.other_ca)

    assert f"listening on https://{server.tcp}" in server.said
    assert (trusted[0], by_the_system[0]) == (0, 0), trusted[2]
    assert isinstance(json.loads(trusted[1]), list)
    for code, _, said in (untrusted, signed_by_another):
        assert code == 4
        assert "PROBE_CA" in said


def test_a_certificate_of_another_name_is_not_taken(server: Served, certificates: Certificates) -> None:
    code, _, said = listing(f"https://127.0.0.2:{server.tcp.split(':')[1]}", server, PROBE_CA=certificates.ca)

    assert code == 4  # nobody listens there, or the name is wrong
    assert said


def test_plain_http_gets_an_error_that_names_https(server: Served) -> None:
    code, _, said = listing(server.tcp, server)

    assert code == 4
    assert "https://" in said


def test_its_unix_socket_speaks_as_ever(server: Served) -> None:
    code, _, said = listing(f"unix:{server.unix}", server)

    assert code == 0, said


def test_if_client_certificates_are_required_the_token_alone_is_not_enough(
    certificates: Certificates, tmp_path: Path
) -> None:
    tls = ("--tls-cert", certificates.server, "--tls-client-ca", certificates.ca)
    with serving(tmp_path, "--listen", "TCP", *tls) as server:
        endpoint = f"https://{server.tcp}"
        both = listing(endpoint, server, PROBE_CA=certificates.ca, PROBE_CLIENT_CERT=certificates.client)
        token = listing(endpoint, server, PROBE_CA=certificates.ca)
        (tmp_path / "empty").mkdir()
        no_token = probe(
            "-t", endpoint, "list", XDG_CONFIG_HOME=f"{tmp_path}/empty", PROBE_CA=certificates.ca,
            PROBE_CLIENT_CERT=certificates.client,
        )  # fmt: skip

    assert both[0] == 0, both[2]
    assert token[0] == 4
    assert "PROBE_CLIENT_CERT" in token[2]
    assert no_token.returncode == 1
    assert "wants a token" in no_token.stderr


@pytest.mark.parametrize("files", [("--tls-cert", "/no/such"), ("--tls-key", "/no/such")])
def test_unusable_certificates_are_reported_before_the_server_listens(files: tuple[str, ...], tmp_path: Path) -> None:
    done = probe("serve", "--listen", "127.0.0.1:48124", "--unix", f"{tmp_path}/host.sock", *files)

    assert done.returncode == 2
    assert "certificate" in done.stderr
    assert not (tmp_path / "host.sock").exists()
