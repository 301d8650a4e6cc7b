"""How many bytes a member sends for one average: heads and bodies as the transport counts them, over 2(n−1)/n · "
"payload."""

from collections.abc import Mapping

from experiments.allreduce.crew import Crew
from experiments.allreduce.lab import Lab
from experiments.allreduce.options import Options
from experiments.allreduce.ring_requests import ring
from experiments.harness.report import Cell, Claim, Part, Table

MIB = 1 << 20
MOST = 1.01
SIZES = (MIB // 16, MIB, 16 * MIB)
RATES = (None, 2.5e6)
"""Bytes/s of the slowest link, by which the chunk size is chosen: not known to be slow, 20 Mbit/s."""

LAB_MEMBERS, LAB_MBPS, LAB_ONE_WAY_S, LAB_BYTES = 4, 100.0, 0.005, 8 * MIB


def run(options: Options) -> Part:
    """Measure, and judge."""
    rows: list[list[Cell]] = []
    worst = 0.0
    for members in (3,) if options.quick else (2, 3, 4, 6, 8):
        with Crew([f"m{index}" for index in range(members)]) as crew:
            crew.open("plain")
            for n_bytes in SIZES[: 2 if options.quick else None]:
                for rate in RATES:
                    request = ring(f"{n_bytes} {rate}", crew.names, n_bytes, bytes_per_s=rate)
                    ratio = _ratio(crew, request, n_bytes)
                    chunks = "largest" if rate is None else f"for {rate * 8e-6:g} Mbit/s"
                    way = "direct" if request["direct"] else "ring"
                    rows.append([members, f"{n_bytes / MIB:g}", chunks, way, f"{ratio:.5f}"])
                    worst = max(worst, ratio) if n_bytes >= MIB else worst
    claims = [
        Claim(
            "bytes",
            "bytes that a member sends for an average, over 2(n−1)/n · payload, from 1 MiB, at worst",
            f"<= {MOST}",
            f"{worst:.5f}",
            worst <= MOST,
        )
    ]
    notes = [
        "Counted by the endpoints: all frames of all messages, without TCP's and ZeroMQ's own headers. Small vectors "
        "go directly, everyone to everyone: one hop instead of 2(n−1), for more bytes."
    ]
    if options.wanlab is None or options.quick:
        notes.append(f"Left out: counters of interfaces: {options.why_no_lab or 'not part of --quick'}.")
    else:
        sent = _in_lab(Lab, options)
        notes.append(
            f"On the interfaces of {LAB_MEMBERS} namespaces (wanlab, {LAB_MBPS:g} Mbit/s, frames of 9000 bytes), "
            "with all headers and "
            f"acknowledgements: {sent:.4f} for {LAB_BYTES // MIB} MiB."
        )
    columns = ["members", "payload, MiB", "chunks", "way", "sent / (2(n−1)/n · payload)"]
    return Part(
        "bytes", "Bytes on the wire", claims, [Table("Bytes of the member that sends most", columns, rows)], (), notes
    )


def _ratio(crew: Crew, request: Mapping[str, object], n_bytes: int) -> float:
    """Of the member that sends most."""
    answers = crew.ask_all(do="rounds", transport="plain", rings=[request], count=1)
    least = 2 * (len(crew.names) - 1) / len(crew.names) * n_bytes
    return float(max(answer["sent_bytes"] for answer in answers.values()) / least)


def _in_lab(make: type[Lab], options: Options) -> float:
    """What the interfaces of namespaces count, over the same."""
    assert options.wanlab is not None
    names = [f"m{index}" for index in range(LAB_MEMBERS)]
    with (
        make(options.wanlab, dict.fromkeys(names, (LAB_MBPS, LAB_MBPS)), LAB_ONE_WAY_S) as lab,
        Crew(names, inside=lab.inside) as crew,
    ):
        crew.open("plain", hosts=lab.addresses)
        before = lab.sent_bytes()
        request = ring("ring", names, LAB_BYTES, bytes_per_s=LAB_MBPS * 1e6 / 8, latency_s=LAB_ONE_WAY_S)
        crew.ask_all(do="rounds", transport="plain", rings=[request], count=1)
        after = lab.sent_bytes()
    least = 2 * (LAB_MEMBERS - 1) / LAB_MEMBERS * LAB_BYTES
    return max(after[name] - before[name] for name in names) / least
