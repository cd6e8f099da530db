"""Counters of the network since boot: devices, TCP, and InfiniBand or RoCE ports, from /proc/net and /sys/class.

Takes about 0.1 ms, and 1 ms for each InfiniBand port with its forty files.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from probe_agent.units import MIB

from .sample import NAN, Sample

__all__ = ["COUNTERS", "GAUGES", "devices", "infiniband", "network", "tcp"]

#: Of each device; NaN where the device does not count it.
COUNTERS = (
    "received",
    "sent",
    "received_packets",
    "sent_packets",
    "errors",
    "drops",
    "retransmits",
    "congestion_marks",
    "congestion_notices",
    "link_downs",
    "link_recoveries",
)
GAUGES = ("is_up", "speed")
#: Virtual devices (those of containers) are left out of a host that has more devices than this.
MAX_VIRTUAL = 16

# Names of the files of a port, in counters/ and hw_counters/, by drivers: mlx5, bnxt_re, irdma, efa.
_ERRORS = (
    "port_rcv_errors",
    "symbol_error",
    "local_link_integrity_errors",
    "excessive_buffer_overrun_errors",
    "port_rcv_remote_physical_errors",
    "rx_icrc_encapsulated",
    "rx_roce_error_pkts",
)
_DROPS = ("port_xmit_discards", "rx_roce_discard_pkts", "tx_roce_discard_pkts", "rx_drops")
_RETRANSMITS = (
    "packet_seq_err",
    "implied_nak_seq_err",
    "local_ack_timeout_err",
    "rnr_nak_retry_err",
    "to_retransmits",
    "RetransSegs",
    "retrans_pkts",
)
_MARKS = ("np_ecn_marked_roce_packets", "rx_ecn_marked_pkts", "RxECNMrkd")
_NOTICES = ("rp_cnp_handled", "rx_cnp_pkts", "cnpHandled")
#: port_rcv_data and port_xmit_data count words of four bytes.
_WORDS_A_MIB = MIB / 4


def network(proc: Path = Path("/proc"), sys: Path = Path("/sys")) -> dict[str, Sample]:
    """Return a sample of each device by name, of `tcp`, and of each port as `mlx5_0/1`; none that cannot be read."""
    found: dict[str, Sample] = {}
    with suppress(OSError):
        found.update(devices((proc / "net/dev").read_text(), sys / "class/net"))
    with suppress(OSError):
        found.update(tcp((proc / "net/snmp").read_text()))
    found.update(infiniband(sys / "class/infiniband"))
    return found


def devices(text: str, folder: Path) -> Iterator[tuple[str, Sample]]:
    """Yield the devices of /proc/net/dev; `folder` is /sys/class/net."""
    lines = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    named = {name.strip(): [int(word) for word in rest.split()] for name, rest in lines.items()}
    for name, words in named.items():
        is_virtual = not (folder / name / "device").exists()
        if name == "lo" or (is_virtual and (len(named) > MAX_VIRTUAL or not words[1] + words[9])):
            continue
        counted = {
            "received": words[0] / MIB,
            "sent": words[8] / MIB,
            "received_packets": words[1],
            "sent_packets": words[9],
            "errors": words[2] + words[10],
            "drops": words[3] + words[11],
            "link_downs": _number(folder / name / "carrier_down_count"),
        }
        speed = _number(folder / name / "speed")  # Mbit/s; -1 where it has none
        is_up = _text(folder / name / "operstate") != "down"
        yield name, _sample(counted, float(is_up), speed * 1e6 / 8 / MIB if speed > 0 else NAN)


def tcp(text: str) -> Iterator[tuple[str, Sample]]:
    """Yield the segments of TCP in /proc/net/snmp as the packets of a device."""
    lines = [line.split()[1:] for line in text.splitlines() if line.startswith("Tcp:")]
    if len(lines) == 2:
        found = dict(zip(lines[0], map(int, lines[1]), strict=False))
        counted = {
            "received_packets": found.get("InSegs", NAN),
            "sent_packets": found.get("OutSegs", NAN),
            "errors": found.get("InErrs", NAN),
            "retransmits": found.get("RetransSegs", NAN),
        }
        yield "tcp", _sample(counted, NAN, NAN)


def infiniband(folder: Path) -> Iterator[tuple[str, Sample]]:
    """Yield the ports below /sys/class/infiniband."""
    for port in sorted(folder.glob("*/ports/*")):
        files = {file.name: file for kind in ("counters", "hw_counters") for file in port.glob(f"{kind}/*")}
        values = {name: number for name, file in files.items() if (number := _number(file)) == number}
        counted = {
            "received": values.get("port_rcv_data", NAN) / _WORDS_A_MIB,
            "sent": values.get("port_xmit_data", NAN) / _WORDS_A_MIB,
            "received_packets": values.get("port_rcv_packets", NAN),
            "sent_packets": values.get("port_xmit_packets", NAN),
            "errors": _sum(values, _ERRORS),
            "drops": _sum(values, _DROPS),
            "retransmits": _sum(values, _RETRANSMITS),
            "congestion_marks": _sum(values, _MARKS),
            "congestion_notices": _sum(values, _NOTICES),
            "link_downs": values.get("link_downed", NAN),
            "link_recoveries": values.get("link_error_recovery", NAN),
        }
        rate = _text(port / "rate").split()  # 400 Gb/sec (4X NDR)
        speed = float(rate[0]) * 1e9 / 8 / MIB if rate else NAN
        yield (
            f"{port.parent.parent.name}/{port.name}",
            _sample(counted, float("ACTIVE" in _text(port / "state")), speed),
        )


def _sample(counted: Mapping[str, float], is_up: float, speed: float) -> Sample:
    return Sample(tuple(counted.get(name, NAN) for name in COUNTERS), (is_up, speed))


def _sum(values: Mapping[str, float], names: Sequence[str]) -> float:
    counted = [values[name] for name in names if name in values]
    return sum(counted) if counted else NAN


def _text(file: Path) -> str:
    try:
        return file.read_text().strip()
    except OSError:
        return ""


def _number(file: Path) -> float:
    try:
        return float(file.read_text())
    except (OSError, ValueError):
        return NAN
