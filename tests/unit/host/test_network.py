"""Counters of the network: texts of several kernels and drivers, and those of this host."""

from __future__ import annotations

from collections.abc import Mapping
from math import isnan
from pathlib import Path

import pytest

from probe_agent.host.network import COUNTERS, devices, infiniband, network, tcp
from probe_agent.host.sample import Sample

#: Linux 6.18, a virtual machine.
DEV = """\
Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes packets errs drop fifo colls carrier compressed
    lo: 67426041  285681    0    0    0     0          0         0 67426041  285681    0    0    0     0       0     0
  ifb0:       0       0    0    0    0     0          0         0        0       0    0    0    0     0       0      0
  eth0: 559445572   14117    3    4    0     0          0         0   894724    8002    1    2    0     0       0    0
"""
_NAMES = (
    "RtoAlgorithm RtoMin RtoMax MaxConn ActiveOpens PassiveOpens AttemptFails EstabResets CurrEstab InSegs OutSegs"
    " RetransSegs InErrs OutRsts"
)
SNMP = f"""\
Ip: Forwarding DefaultTTL InReceives
Ip: 2 64 2314333
Tcp: {_NAMES} InCsumErrors
Tcp: 1 200 120000 -1 651 564 45 51 90 299540 293308 111 0 164 0
Udp: InDatagrams NoPorts
Udp: 475 0
"""
#: Linux 3.10, without InCsumErrors.
OLD_SNMP = f"""\
Tcp: {_NAMES}
Tcp: 1 200 120000 -1 1 2 3 4 5 600 700 8 9 10
"""
#: A port of mlx5 as RoCE, one of mlx5 as InfiniBand, one of EFA, one of an old mlx4 without hw_counters.
PORTS = {
    "mlx5_0": {
        "state": "4: ACTIVE", "rate": "400 Gb/sec (4X NDR)", "link_layer": "Ethernet",
        "counters/port_rcv_data": 786432, "counters/port_xmit_data": 262144, "counters/port_rcv_errors": 1,
        "counters/symbol_error": 2, "counters/port_xmit_discards": 5, "counters/link_downed": 3,
        "counters/link_error_recovery": 0, "counters/port_rcv_packets": 900, "counters/port_xmit_packets": 800,
        "hw_counters/np_ecn_marked_roce_packets": 77, "hw_counters/np_cnp_sent": 70, "hw_counters/rp_cnp_handled": 66,
        "hw_counters/packet_seq_err": 4, "hw_counters/local_ack_timeout_err": 6, "hw_counters/lifespan": 10,
    },
    "mlx5_1": {
        "state": "1: DOWN", "rate": "10 Gb/sec (4X SDR)", "link_layer": "InfiniBand",
        "counters/port_rcv_data": 0, "counters/link_downed": 1,
    },
    "rdmap0s6": {
        "state": "4: ACTIVE", "rate": "100 Gb/sec (4X EDR)", "link_layer": "Unspecified",
        "hw_counters/retrans_pkts": 12, "hw_counters/rx_drops": 9, "hw_counters/lifespan": 12,
    },
    "mlx4_0": {"state": "4: ACTIVE", "rate": "40 Gb/sec (4X QDR)", "counters/symbol_error": 65535},
}  # fmt: skip


def counted(sample: Sample) -> Mapping[str, float]:
    return dict(zip(COUNTERS, sample.counters, strict=True))


@pytest.fixture
def ports(tmp_path: Path) -> Path:
    for device, files in PORTS.items():
        for name, value in files.items():
            file = tmp_path / device / "ports" / "1" / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(f"{value}\n")
    return tmp_path


def test_devices_without_traffic_and_the_loopback_are_left_out(tmp_path: Path) -> None:
    found = dict(devices(DEV, tmp_path))

    assert list(found) == ["eth0"]
    told = counted(found["eth0"])
    assert told["received"] == pytest.approx(533.53, abs=0.01)
    assert (told["errors"], told["drops"], told["sent_packets"]) == (4, 6, 8002)
    assert isnan(told["congestion_marks"])


def test_speed_and_lost_carriers_come_from_the_devices_folder(tmp_path: Path) -> None:
    (tmp_path / "eth0").mkdir()
    for name, value in (("speed", "100000"), ("operstate", "down"), ("carrier_down_count", "2")):
        (tmp_path / "eth0" / name).write_text(value + "\n")

    sample = dict(devices(DEV, tmp_path))["eth0"]

    assert sample.gauges == (0.0, pytest.approx(11920.9, abs=0.1))
    assert counted(sample)["link_downs"] == 2


def test_the_devices_of_a_hundred_containers_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "eth0" / "device").mkdir(parents=True)
    line = next(line for line in DEV.splitlines() if "eth0" in line)
    text = DEV + "\n".join(line.replace("eth0", f"veth{number}") for number in range(100))

    assert list(dict(devices(text, tmp_path))) == ["eth0"]


@pytest.mark.parametrize(("text", "sent", "again"), [(SNMP, 293308, 111), (OLD_SNMP, 700, 8)])
def test_segments_of_tcp_that_were_sent_again(text: str, sent: int, again: int) -> None:
    told = counted(dict(tcp(text))["tcp"])

    assert (told["sent_packets"], told["retransmits"]) == (sent, again)


def test_a_roce_port_has_errors_marks_and_retransmits_under_one_name_each(ports: Path) -> None:
    sample = dict(infiniband(ports))["mlx5_0/1"]

    assert counted(sample) == {
        "received": 3.0, "sent": 1.0, "received_packets": 900, "sent_packets": 800, "errors": 3, "drops": 5,
        "retransmits": 10, "congestion_marks": 77, "congestion_notices": 66, "link_downs": 3, "link_recoveries": 0,
    }  # fmt: skip
    assert sample.gauges == (1.0, pytest.approx(47683.7, abs=0.1))


def test_what_a_driver_does_not_count_is_unknown_and_not_zero(ports: Path) -> None:
    found = {name: counted(sample) for name, sample in infiniband(ports)}

    assert (found["rdmap0s6/1"]["retransmits"], found["rdmap0s6/1"]["drops"]) == (12, 9)
    assert all(isnan(found["rdmap0s6/1"][name]) for name in ("received", "errors", "link_downs", "congestion_marks"))
    assert found["mlx4_0/1"]["errors"] == 65535
    assert dict(infiniband(ports))["mlx5_1/1"].gauges[0] == 0.0


def test_a_counter_that_went_back_has_no_rate() -> None:
    earlier, now = Sample((100.0, 100.0), (1.0,)), Sample((150.0, 20.0), (0.0,))

    rates = now.since(earlier, 5.0)

    assert rates[0] == 10.0
    assert isnan(rates[1])
    assert rates[2] == 0.0


def test_this_host_counts_the_segments_of_tcp() -> None:
    assert counted(network()["tcp"])["sent_packets"] >= 0
