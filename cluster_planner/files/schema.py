"""The shape of nodes.yaml and plan.yaml, as typed, frozen pydantic models, and remarks on implausible values.

The models define which keys exist, their types, and the range of each value by itself. What needs two values at once
(unique names, known peers, spans that join up) is checked by the objects that the models are converted to. Keys carry
the units that a user thinks in: 1 GB = 1e9 bytes, 1 Mbit/s = 1e6 bit/s, 1 GFLOP/s = 1e9 FLOP/s. Nothing is coerced:
text is no number, true is no 1.

`remarks` names what is possible but hardly meant, such as a unit mistaken by powers of ten or a cap that caps nothing.
None of it is refused: one day machines may be that large.
"""

import re
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, JsonValue, ValidationInfo
from pydantic_core import PydanticCustomError

from cluster_planner.files import schema
from cluster_planner.files.known_hardware import hardware_named
from cluster_planner.formatting import format_count
from cluster_planner.inputs.constraints import hours_from
from cluster_planner.inputs.model_costs import ActivationCheckpointing, Schedule, Tied
from cluster_planner.plan import CLUSTER_NAME, CLUSTER_NAME_EXPECTED

SMALLEST, LARGEST = 1e-9, 1e15
"""Limits of what is measured of machines and links. Beyond them, sums and quotients leave the range of a float."""


Text = Annotated[str, Field(min_length=1)]

Positive = Annotated[float, Field(gt=0)]

AtLeastZero = Annotated[float, Field(ge=0)]

PerByte = Annotated[float, Field(ge=0, le=1e6)]
"""Bytes, or FLOPs, for each byte of something, whose product with a count of bytes is finite."""

MOST = 2**62
"""A larger whole number is taken for a mistake. Sums of such numbers still fit a float."""

Count = Annotated[int, Field(ge=0, le=MOST)]

OneOrMore = Annotated[int, Field(ge=1, le=MOST)]

Pair = Annotated[tuple[Text, Text], Field(strict=False)]

SpanEntry = Annotated[tuple[Count, Count], Field(strict=False)]

Member = Annotated[tuple[Text, Count], Field(strict=False)]

MOST_GFLOPS = 1e8

MOST_MEMORY_GB = 16e3

MOST_MBPS = 1e5

SHOWN = 8
"""The largest number of remarks that are shown; of the others only the number is told."""


def _in_range(value: float) -> float:
    if value and not SMALLEST <= value <= LARGEST:
        raise ValueError(f"must be from {SMALLEST:g} to {LARGEST:g}, not {value:g}: is its unit the one in the key?")
    return value


def _device(text: str) -> str:
    if re.fullmatch(r"[a-z]+(:\d+)?", text) is None:
        raise ValueError(f"must be a device such as cpu, cuda or cuda:1, not {text!r}")
    return text


def _reference(text: str) -> str:
    module, colon, attribute = text.partition(":")
    if not colon or not all(part.isidentifier() for part in (*module.split("."), *attribute.split("."))):
        raise ValueError(f"expected package.module:attribute, not {text!r}")
    return text


def _hours(text: str) -> str:
    hours_from(text)
    return text


def _cluster(text: str) -> str:
    if CLUSTER_NAME.fullmatch(text) is None:
        raise ValueError(f"{CLUSTER_NAME_EXPECTED}, not {text[:80]!r}")
    return text


def _hardware(text: str) -> str:
    return hardware_named(text).name


def _or_of_hardware(value: float | None, info: ValidationInfo) -> float | None:
    if value is None and info.data.get("hardware", "wrong") is None:
        raise PydanticCustomError("missing", "required where no hardware is named")
    return value


Measured = Annotated[float, Field(gt=0), AfterValidator(_in_range)]
Latency = Annotated[float, Field(ge=0), AfterValidator(_in_range)]


class Strict(BaseModel):
    """The base of the models: frozen, without unknown keys, coercion, NaN or infinity."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class NodeDataEntry(Strict):
    factory: Annotated[str, AfterValidator(_reference)] | None = None
    args: dict[str, JsonValue] = {}


class NodeEntry(Strict):
    name: Text
    hardware: Annotated[Text, AfterValidator(_hardware)] | None = None
    gflops: Annotated[Measured | None, Field(validate_default=True), AfterValidator(_or_of_hardware)] = None
    memory_gb: Annotated[Measured | None, Field(validate_default=True), AfterValidator(_or_of_hardware)] = None
    process_gb: Measured | None = None
    host_memory_gb: Measured | None = None
    up_mbps: Measured
    down_mbps: Measured
    host: Text | None = None
    device: Annotated[str, AfterValidator(_device)] | None = None
    address: Text | None = None
    region: Text | None = None
    mtbf_hours: Measured | None = None
    hours: Annotated[str, AfterValidator(_hours)] | None = None
    data: NodeDataEntry | None = None

    @property
    def stated_gflops(self) -> float:
        """Its speed, or what is assumed of its hardware, of which then a name is given."""
        return self.gflops if self.gflops is not None else hardware_named(self.hardware or "").gflops

    @property
    def stated_memory_gb(self) -> float:
        """Its memory, likewise."""
        return self.memory_gb if self.memory_gb is not None else hardware_named(self.hardware or "").memory_gb

    @property
    def stated_device(self) -> str:
        """Its device, likewise; cpu where it names no hardware."""
        return self.device or ("cpu" if self.hardware is None else hardware_named(self.hardware).device)


class LinkEntry(Strict):
    between: Pair
    latency_ms: Latency
    mbps: Measured
    jitter_ms: Latency = 0.0


class CapEntry(Strict):
    node: Text
    memory_gb: Measured | None = None
    up_mbps: Measured | None = None


class PinEntry(Strict):
    node: Text
    cluster: Annotated[str, AfterValidator(_cluster)] | None = None
    stage: Count | Literal["last"] | None = None


class ConstraintsEntry(Strict):
    min_clusters: OneOrMore = 1
    forbid: list[Pair] = []
    groups: dict[Text, Annotated[list[Text], Field(min_length=1)]] = {}
    apart: list[Pair] = []
    cap: list[CapEntry] = []
    pin: list[PinEntry] = []


class FleetFile(Strict):
    """The content of a nodes.yaml."""

    FILE: ClassVar[str] = "a list of nodes"
    """Messages to the user call such a file by this name."""

    nodes: Annotated[list[NodeEntry], Field(min_length=1)]
    links: list[LinkEntry] = []
    regions: list[LinkEntry] = []
    flops_per_byte: PerByte = 0.0
    constraints: ConstraintsEntry = ConstraintsEntry()


class StageEntry(Strict):
    node: Text
    units: SpanEntry
    recomputes: bool = False


class ClusterEntry(Strict):
    name: Text
    window: OneOrMore
    stages: Annotated[list[StageEntry], Field(min_length=1)]


class RingEntry(Strict):
    units: SpanEntry
    members: Annotated[list[Member], Field(min_length=1)]


class SpareEntry(Strict):
    node: Text
    reason: str
    shadows: list[Member] = []


class StagePredictionEntry(Strict):
    compute_s: AtLeastZero
    up_s: AtLeastZero
    down_s: AtLeastZero
    occupancy_s: AtLeastZero
    memory_bytes: Count


class ClusterPredictionEntry(Strict):
    samples_per_s: Positive
    bottleneck_s: AtLeastZero
    round_trip_s: AtLeastZero
    bottleneck: str
    stages: list[StagePredictionEntry]


class PredictionEntry(Strict):
    samples_per_s: Positive
    averaging_s: AtLeastZero
    objective: AtLeastZero
    efficiency: AtLeastZero
    bottleneck: str
    advice: str
    clusters: list[ClusterPredictionEntry]
    best_possible: Positive | None = None
    loaded_averaging_s: AtLeastZero | None = None


class UnitEntry(Strict):
    name: str
    flops: AtLeastZero
    parameter_bytes: Count
    saved_bytes: Count
    boundary_bytes: Count
    boundary_gradient_bytes: Count
    boundary_narrow_bytes: Count = 0
    shared: list[str] = []
    tied_bytes: Count = 0
    borrowed_bytes: Count = 0
    narrow_bytes: Count = 0
    optimizer_bytes: Count | None = None
    moved_bytes: Count = 0


class WorkloadEntry(Strict):
    micro_batch: OneOrMore
    update_every: OneOrMore
    max_staleness: Count
    average_every: OneOrMore
    max_lag: OneOrMore
    optimizer_state_bytes_per_parameter_byte: PerByte
    process_bytes: Count
    averaged_bytes_per_parameter_byte: Annotated[PerByte, Field(gt=0)] = 1.0
    activation_wire_ratio: Annotated[PerByte, Field(gt=0)] = 1.0
    gradient_wire_ratio: Annotated[PerByte, Field(gt=0)] = 1.0
    averaging_state_bytes_per_parameter_byte: PerByte = 0.0
    robust_averaging: bool = False
    hierarchical_averaging: bool = False
    schedule: Schedule = "async"
    splits_backward: bool = False
    cast_bytes_per_parameter_byte: PerByte = 0.0
    activation_checkpointing: ActivationCheckpointing = "never"
    tied: Tied = "exact"
    reading_s: AtLeastZero = 0.0
    readers: Count = 0
    reader_bytes: Count = 0


class PlanFile(Strict):
    """The content of a plan.yaml."""

    FILE: ClassVar[str] = "a plan"

    version: Literal[1]
    job_file: str
    seed: int
    min_stages: OneOrMore = 1
    clusters: Annotated[list[ClusterEntry], Field(min_length=1)]
    rings: list[RingEntry]
    spares: list[SpareEntry] = []
    predicted: PredictionEntry
    job: dict[str, JsonValue]
    workload: WorkloadEntry
    nodes: Annotated[list[NodeEntry], Field(min_length=1)]
    links: list[LinkEntry] = []
    regions: list[LinkEntry] = []
    flops_per_byte: PerByte = 0.0
    constraints: ConstraintsEntry = ConstraintsEntry()
    fingerprint: str
    data: str = ""
    units: Annotated[list[UnitEntry], Field(min_length=1)]


def remarks(entry: schema.FleetFile) -> list[str]:
    """Return one line, with its key, for each value that is possible but hardly meant."""
    said = []
    for i, node in enumerate(entry.nodes):
        for key, value, most, unit in (
            ("gflops", node.stated_gflops, MOST_GFLOPS, "GFLOP/s"),
            ("memory_gb", node.stated_memory_gb, MOST_MEMORY_GB, "GB"),
            ("up_mbps", node.up_mbps, MOST_MBPS, "Mbit/s"),
            ("down_mbps", node.down_mbps, MOST_MBPS, "Mbit/s"),
        ):
            if value > most:
                said.append(f"nodes[{i}].{key}: {value:,.10g} {unit} of {node.name} is more than any machine has")
        assumed = [
            (key, f"{value:,.4g} {unit}")
            for key, given, value, unit in (
                ("gflops", node.gflops, node.stated_gflops, "GFLOP/s"),
                ("memory_gb", node.memory_gb, node.stated_memory_gb, "GB"),
            )
            if given is None
        ]
        if assumed:
            is_, it = ("is", "it") if len(assumed) == 1 else ("are", "them")
            said.append(
                f"nodes[{i}].{', '.join(key for key, _ in assumed)}: {' and '.join(each for _, each in assumed)} of"
                f" {node.name} {is_} assumed from its hardware, {node.hardware}; `ravnest profile` measures {it}"
            )
    for kind, links in (("links", entry.links), ("regions", entry.regions)):
        said += [
            f"{kind}[{i}].mbps: {link.mbps:,.10g} Mbit/s between {' and '.join(link.between)} is more than any link has"
            for i, link in enumerate(links)
            if link.mbps > MOST_MBPS
        ]
    named = {node.name: node for node in entry.nodes}
    for i, cap in enumerate(entry.constraints.cap):
        node = named[cap.node]
        for key, capped, has in (
            ("memory_gb", cap.memory_gb, node.stated_memory_gb),
            ("up_mbps", cap.up_mbps, node.up_mbps),
        ):
            if capped is not None and capped > has:
                said.append(f"constraints.cap[{i}].{key}: {capped:,.10g} caps nothing: {node.name} has {has:,.10g}")
    return said if len(said) <= SHOWN else [*said[:SHOWN], f"and {format_count(len(said) - SHOWN, 'remark')} more"]
