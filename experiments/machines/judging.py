"""From what the commands came to, to claims, tables and a picture."""

from collections.abc import Sequence
from itertools import combinations

from experiments.harness.report import Cell, Claim, Panel, Part, Series, Table
from experiments.machines.measure import Story

WITHIN = 0.10
NOTES = (
    "Each machine is a network namespace of wanlab with a Ray node of its own; rates and round trips are what the lab"
    " was set to. Latency is half of a round trip; rates are those of the transport's messages, without the headers of"
    " TCP and IP.",
    "A rate that the other machines together cannot fill is left out: nobody can see it, and no plan can use it.",
    "All machines share two cores, so speeds say nothing here and are not judged.",
)


def links(story: Story) -> Part:
    """What `ravnest profile` wrote, beside what the lab was set to."""
    site, fleet = story.site, story.fleet
    pairs = [(a, b) for a, b in combinations(site.names, 2)]
    latencies = [(f"{a} – {b}", 1e3 * site.one_way_s(a, b), 1e3 * fleet.link(a, b).latency_s) for a, b in pairs]
    flows = [(f"{a} → {b}", mbps, fleet.flow_bytes_per_s(a, b) / 125_000) for (a, b), mbps in site.flows().items()]
    nodes = [
        (f"{way} of {name}", mbps, _rate(story, way, name) / 125_000) for (way, name), mbps in site.fillable().items()
    ]
    return Part(
        name="links",
        title="Profiled links beside the lab's",
        claims=[
            _claim("latency", "profiled latency of each pair", latencies),
            _claim("bandwidth", "profiled bandwidth of each pair, each way", flows),
            _claim("machines", "profiled uplinks and downlinks of machines", nodes),
        ],
        tables=[
            Table("One-way latencies, ms", ("pair", "set", "profiled", "off by"), _rows(latencies)),
            Table("What one flow can carry, Mbit/s", ("from → to", "set", "profiled", "off by"), _rows(flows)),
            Table("Uplinks and downlinks, Mbit/s", ("rate", "set", "profiled", "off by"), _rows(nodes)),
        ],
        panels=[
            _panel("latency", "ms", latencies),
            _panel("bandwidth", "Mbit/s", flows),
            _panel("uplinks, downlinks", "Mbit/s", nodes),
        ],
        notes=[*NOTES, *(f"ravnest profile said: {note}." for note in story.profile["notes"])],
    )


def cluster(story: Story) -> Part:
    """Doctor and run on the same cluster."""
    failing = _failing(story.sound)
    sick = _failing(story.sick)
    named = [line for line in sick if story.cut in line]
    trained = "error" not in story.run
    did = f"{story.run['samples']} samples, held-out loss {story.run['held_out_loss']:.3g}" if trained else "failed"
    return Part(
        name="cluster",
        title="Doctor and run on machines that cannot see the job's folder",
        claims=[
            Claim(
                "code",
                "run --address trains a job whose folder the other machines cannot see",
                "it trains",
                did if trained else str(story.run["error"])[-200:],
                trained,
            ),
            Claim(
                "sound",
                "doctor finds nothing that would fail before that run",
                "exit code 0",
                f"exit code {story.sound_code}; {'; '.join(failing) or 'nothing'}",
                story.sound_code == 0 and not failing,
            ),
            Claim(
                "sick",
                f"doctor names {story.cut} when it is cut off the net, and no other",
                "exit code 1",
                f"exit code {story.sick_code}; {'; '.join(sick) or 'nothing'}",
                story.sick_code == 1 and bool(named) and len(named) == len(sick),
            ),
        ],
        tables=[
            Table(
                "What doctor said",
                ("when", "level", "about", "message"),
                [
                    [when, each["level"], each["about"], each["message"]]
                    for when, document in (("sound", story.sound), (f"{story.cut} cut off", story.sick))
                    for each in document["findings"]
                ],
            )
        ],
        notes=[
            "In each namespace but the head's, an empty file system is mounted over the job's folder before Ray starts"
            " there: code can only come by Ray's runtime environment."
        ],
    )


def unmeasured(name: str, title: str, why: str) -> Part:
    """Where there is no lab."""
    return Part(name, title, [Claim(name, title, "measured", f"not measured: {why}", None)])


def _rate(story: Story, way: str, name: str) -> float:
    node = story.fleet.node(name)
    return node.up_bytes_per_s if way == "up" else node.down_bytes_per_s


def _failing(document: dict[str, list[dict[str, str]]]) -> list[str]:
    return [f"{each['about']} {each['message']}" for each in document["findings"] if each["level"] == "fails"]


def _claim(name: str, statement: str, found: Sequence[tuple[str, float, float]]) -> Claim:
    worst = max(found, key=_off, default=None)
    if worst is None:
        return Claim(name, statement, f"within {WITHIN:.0%}", "nothing was measured", None)
    told = f"at most {_off(worst):.1%} off ({worst[0]}: {worst[2]:.4g} for {worst[1]:.4g})"
    return Claim(name, statement, f"within {WITHIN:.0%} of what the lab was set to", told, _off(worst) <= WITHIN)


def _off(row: tuple[str, float, float]) -> float:
    return abs(row[2] / row[1] - 1)


def _rows(found: Sequence[tuple[str, float, float]]) -> list[list[Cell]]:
    return [[what, given, round(measured, 2), f"{measured / given - 1:+.1%}"] for what, given, measured in found]


def _panel(title: str, unit: str, found: Sequence[tuple[str, float, float]]) -> Panel:
    ordered = sorted(found, key=lambda row: row[1])
    off = Series("profiled", [given for _, given, _ in ordered], [measured for _, _, measured in ordered])
    line = Series("set", [given for _, given, _ in ordered], [given for _, given, _ in ordered])
    return Panel(title, f"set, {unit}", f"profiled, {unit}", [line, off])
