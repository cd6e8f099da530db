"""Two hosts with a network between them, each with its own names, addresses, processes and shared memory.

Each runs one rank, started with PROBE_LISTEN on every interface and a token, with TLS and without. The commands run in
a third place.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

from support.commands import ROOT, environment

ISOLATED = ["unshare", "-n", "-m", "-p", "-f", "--mount-proc"]
TOKEN = "0123456789abcdef0123456789abcdef"
PATH_ENTRY = ROOT / "probe_agent" / "activate" / "path"
SCRIPT = f"""
set -u
cd $1
if [ -e ca.pem ]; then
    mount --bind hosts /etc/hosts || exit 77
    export PROBE_TLS_CERT=$1/cert.pem PROBE_TLS_KEY=$1/key.pem PROBE_CA=$1/ca.pem
fi
ip link add hub type bridge && ip link set hub up && ip addr add 10.77.0.1/24 dev hub && ip link set lo up || exit 77
for rank in 0 1; do
    unshare -n -m -u -p -f --mount-proc sh -c "
        while ! ip link show eth0 >/dev/null 2>&1; do sleep 0.1; done
        mount -t tmpfs none /dev/shm; hostname node$rank
        ip link set lo up; ip link set eth0 up; ip addr add 10.77.0.1$rank/24 dev eth0
        export GLOO_SOCKET_IFNAME=eth0 MASTER_ADDR=10.77.0.10 MASTER_PORT=29511 RANK=$rank WORLD_SIZE=2 LOCAL_RANK=0
        export PROBE=1 PROBE_LISTEN=0.0.0.0:8080 PROBE_TOKEN={TOKEN} PYTHONPATH={PATH_ENTRY} OMP_NUM_THREADS=1
        {sys.executable} {ROOT}/tests/targets/ranks_job.py $1 > out$rank 2>&1; echo \\$? > code$rank" &
    while ! inner=$(pgrep -P $!); do sleep 0.1; done
    ip link add v$rank type veth peer name eth0 netns $inner && ip link set v$rank master hub && ip link set v$rank up
done
export PROBE_TOKEN={TOKEN}
for wait in $(seq 30); do
    probe -t $2 ranks --format jsonl >whole 2>whole.err
    [ $(grep -c '"step_time": *[0-9]' whole) = 2 ] && break
    sleep 0.5
done
PROBE_CA= probe -t $2 ranks > untrusted 2>&1; echo $? > untrusted.code
probe -t $3 --all query "SELECT DISTINCT rank FROM python.steps ORDER BY rank" --format csv > query 2> query.err
probe -t $3 --all eval "(dist.get_rank(), os.uname().nodename)" > eval 2>&1
ip link set v1 down
probe -t $2 ranks --format json --timeout 3 > cut 2> cut.err; echo $? > cut.code
ip link set v1 up
touch stop
for wait in $(seq 200); do [ -e code0 ] && [ -e code1 ] && break; sleep 0.1; done
"""


def certified(folder: Path) -> None:
    """Create in `folder` what two hosts with names need for TLS."""
    trustme = pytest.importorskip("trustme")
    ca = trustme.CA()
    ca.cert_pem.write_to_path(folder / "ca.pem")
    shown = ca.issue_cert("node0", "node1")
    shown.private_key_pem.write_to_path(folder / "key.pem")
    shown.cert_chain_pems[0].write_to_path(folder / "cert.pem")
    (folder / "hosts").write_text("127.0.0.1 localhost\n10.77.0.10 node0\n10.77.0.11 node1\n")


@pytest.mark.parametrize(
    "endpoints",
    [
        pytest.param(("10.77.0.10:8080", "10.77.0.11:8080"), id="plain", marks=pytest.mark.long),
        pytest.param(("https://node0:8080", "https://node1:8080"), id="tls"),
    ],
)
def test_one_host_leads_to_the_other_over_a_network_and_a_cut_link_is_reported(
    endpoints: tuple[str, str], tmp_path: Path
) -> None:
    tools = all(shutil.which(name) for name in ("ip", "unshare", "pgrep"))
    if not tools or subprocess.run([*ISOLATED, "true"], capture_output=True).returncode:
        pytest.skip("may not make network namespaces here")

    with_tls = endpoints[0].startswith("https://")
    if with_tls:
        certified(tmp_path)

    done = subprocess.run(
        [*ISOLATED, "sh", "-c", SCRIPT, "sh", str(tmp_path), *endpoints],
        env=environment(XDG_STATE_HOME=str(tmp_path)),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        timeout=110,
    )

    if done.returncode == 77:
        pytest.skip("may not make a bridge here")

    def said(name: str) -> str:
        return (tmp_path / name).read_text()

    whole = [(row["rank"], row["host"], row["endpoint"]) for row in map(json.loads, said("whole").splitlines())]
    assert whole == [(rank, f"node{rank}", f"{endpoints[rank]}/{rank}") for rank in (0, 1)], said("whole.err")
    assert said("query").split() == ["rank", "0", "1"], said("query.err")
    assert said("untrusted.code") == ("4\n" if with_tls else "0\n")
    assert ("PROBE_CA" in said("untrusted")) is with_tls
    assert "(0, 'node0')" in said("eval")
    assert "(1, 'node1')" in said("eval")
    assert [row["rank"] for row in json.loads(said("cut"))] == [0]
    assert said("cut.code") == "3\n"
    assert re.search(rf"{endpoints[1]}/[a-z]{{6}} did not answer", said("cut.err"))
    for rank in (0, 1):
        # torch itself says one line, since these addresses have no names.
        printed = [line for line in said(f"out{rank}").splitlines() if "hostname of the client socket" not in line]
        assert (said(f"code{rank}"), printed) == ("0\n", [])
        steps, learnt, alone = json.loads(said(f"done-{rank}.json"))
        assert steps > 0
        assert learnt == pytest.approx(alone, rel=1e-4)
