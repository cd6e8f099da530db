"""A host server on its unix socket, reached from elsewhere by `ssh -L`, as docs/security.md describes."""

from __future__ import annotations

import getpass
import json
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.commands import probe
from support.ports import free_port
from support.waiting import until

from .served import serving, training

SSHD = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin:/usr/local/sbin")
pytestmark = pytest.mark.skipif(
    SSHD is None or shutil.which("ssh") is None, reason="no ssh or no sshd here (Debian: openssh-server)"
)
CONFIG = """
ListenAddress 127.0.0.1:{port}
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/user_key.pub
PidFile {folder}/sshd.pid
PasswordAuthentication no
UsePAM no
StrictModes no
"""


def _listens(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture
def ssh(tmp_path: Path) -> Iterator[list[str]]:
    """The command `ssh` with the options to log in to an sshd of this test, as this user."""
    for name in ("host_key", "user_key"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / name)], check=True)
    port = free_port()
    config = tmp_path / "sshd_config"
    config.write_text(CONFIG.format(port=port, folder=tmp_path))
    if os.getuid() == 0:
        os.makedirs("/run/sshd", exist_ok=True)  # where it shuts itself in before anybody has logged in
    with subprocess.Popen([str(SSHD), "-D", "-e", "-f", str(config)], stderr=subprocess.DEVNULL) as server:
        try:
            until(lambda: _listens(port), process=server)
            options = ("BatchMode=yes", "StrictHostKeyChecking=no", f"UserKnownHostsFile={tmp_path}/known_hosts")
            yield [
                *("ssh", "-F", "none", "-q", "-p", str(port), "-i", str(tmp_path / "user_key")),
                *(word for option in options for word in ("-o", option)),
                f"{getpass.getuser()}@127.0.0.1",
            ]
        finally:
            server.terminate()


def test_a_unix_socket_is_forwarded_and_its_owner_let_in(ssh: list[str], tmp_path: Path) -> None:
    here = tmp_path / "node17.sock"
    with serving(tmp_path) as server, training("answer = 6 * 7\nimport sys; sys.stdin.read()") as pid:
        forward = [ssh[0], "-N", "-L", f"{here}:{server.unix}", *ssh[1:]]

        with subprocess.Popen(forward) as forwarding:
            try:
                until(here.exists, process=forwarding)
                listed = probe("-t", f"unix:{here}", "list", "--format", "json")
                evaluated = probe("-t", f"unix:{here}//pid={pid}", "eval", "print(answer)")
            finally:
                forwarding.terminate()

    assert listed.returncode == 0, listed.stderr
    assert pid in [target["pid"] for target in json.loads(listed.stdout)]
    assert evaluated.stdout == "42\n", evaluated.stderr
