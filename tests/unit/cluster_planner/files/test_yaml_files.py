import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict

from cluster_planner.errors import InvalidInput
from cluster_planner.files.yaml_files import load_fleet, load_plan, read_validated, save_fleet, save_plan
from cluster_planner.inputs.fleet import CUDA_HOST_BYTES, PROCESS_BYTES, Fleet, Node, NodeData
from cluster_planner.inputs.links import Link, RegionLink
from cluster_planner.inputs.model_costs import ModelCosts, Workload
from cluster_planner.plan import Plan
from cluster_planner.planner import make_plan

NODES = """
nodes:
  - name: desk
    gflops: 4200
    memory_gb: 16
    up_mbps: 40
    down_mbps: 200
    host: attic
    device: cuda:0
    address: 192.0.2.10
    region: fra
    mtbf_hours: 24
    data: {args: {path: /mnt/corpus}}
  - {name: laptop, gflops: 1e3, memory_gb: 0.5, up_mbps: 1.5e+1, down_mbps: 50, region: iad}
links:
  - {between: [desk, laptop], latency_ms: 3.1, mbps: 93}
regions:
  - {between: [fra, iad], latency_ms: 46, mbps: 300}
"""


@pytest.fixture
def nodes_yaml(tmp_path: Path) -> Callable[[str], Path]:
    def write(text: str) -> Path:
        path = tmp_path / "nodes.yaml"
        path.write_text(text)
        return path

    return write


@pytest.fixture(scope="module")
def plan(home: Fleet, make_model: Callable[..., ModelCosts], make_workload: Callable[..., Workload]) -> Plan:
    return make_plan(
        home,
        make_model(8),
        make_workload(),
        job={"optimizer": {"lr": 1e-3}, "text": "1e-3"},
        job_file="job.yaml",
        min_stages=2,
    )


def refusal(action: Callable[[], object]) -> InvalidInput:
    with pytest.raises(InvalidInput) as caught:
        action()
    return caught.value


def test_a_fleet_is_read_in_si_units(nodes_yaml: Callable[[str], Path]) -> None:
    fleet = load_fleet(nodes_yaml(NODES))
    assert fleet.nodes[0] == Node(
        name="desk",
        flops_per_s=4.2e12,
        memory_bytes=16 * 10**9,
        up_bytes_per_s=5e6,
        down_bytes_per_s=2.5e7,
        host="attic",
        device="cuda:0",
        address="192.0.2.10",
        region="fra",
        mtbf_s=86400.0,
        data=NodeData(None, {"path": "/mnt/corpus"}),
    )
    assert fleet.nodes[1].flops_per_s == 1e12
    assert (fleet.nodes[1].up_bytes_per_s, fleet.nodes[1].memory_bytes) == (1.875e6, 5 * 10**8)
    assert fleet.links == (Link("desk", "laptop", 0.0031, 93 * 125_000.0),)
    assert fleet.regions == (RegionLink("fra", "iad", 0.046, 3.75e7),)


def test_what_a_process_takes_of_a_gpu_is_read_and_written(nodes_yaml: Callable[[str], Path], tmp_path: Path) -> None:
    stated = load_fleet(nodes_yaml(NODES.replace("device: cuda:0", "device: cuda:0\n    process_gb: 0.777")))
    assert stated.nodes[0].process_bytes == 777 * 10**6
    assert stated.nodes[0].room_bytes == 16 * 10**9 - (777 * 10**6 - PROCESS_BYTES)
    save_fleet(stated, tmp_path / "again.yaml")
    assert load_fleet(tmp_path / "again.yaml") == stated


def test_what_moving_a_byte_takes_is_read_and_written(nodes_yaml: Callable[[str], Path], tmp_path: Path) -> None:
    assert load_fleet(nodes_yaml(NODES)).flops_per_byte == 0.0
    stated = load_fleet(nodes_yaml(NODES + "flops_per_byte: 12.5\n"))
    assert stated.flops_per_byte == 12.5
    save_fleet(stated, tmp_path / "again.yaml")
    assert load_fleet(tmp_path / "again.yaml") == stated
    with pytest.raises(InvalidInput, match="0 or more") as caught:
        load_fleet(nodes_yaml(NODES + "flops_per_byte: -1\n"))
    assert caught.value.key == "flops_per_byte"


def test_what_a_gpu_s_machine_spares_is_read_and_written(nodes_yaml: Callable[[str], Path], tmp_path: Path) -> None:
    stated = load_fleet(nodes_yaml(NODES.replace("device: cuda:0", "device: cuda:0\n    host_memory_gb: 12.5")))
    assert stated.nodes[0].host_memory_bytes == 12_500_000_000
    assert stated.nodes[0].host_room_bytes == 12_500_000_000 - CUDA_HOST_BYTES
    assert math.isinf(stated.nodes[1].host_room_bytes)
    save_fleet(stated, tmp_path / "again.yaml")
    assert load_fleet(tmp_path / "again.yaml") == stated


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("device: cuda:0", "host_memory_gb: 12", "nodes[0].host_memory_gb: is for GPUs: state memory_gb alone"),
        ("gflops: 4200", "gflop: 4200", "nodes[0].gflop: is not a known key; did you mean 'gflops'?"),
        ("host: attic", "zzz: attic", "nodes[0].zzz: is not a known key; known keys are name, hardware, gflops"),
        ("up_mbps: 40", "up_mbps: -40", "nodes[0].up_mbps: must be above 0, not -40"),
        ("up_mbps: 40", "up_mbps: 0", "nodes[0].up_mbps: must be above 0, not 0"),
        ("up_mbps: 40", "up_mbps: .nan", "nodes[0].up_mbps: must be a finite number, not nan"),
        ("up_mbps: 40", "up_mbps: .inf", "nodes[0].up_mbps: must be a finite number, not inf"),
        ("up_mbps: 40", "up_mbps: fast", "nodes[0].up_mbps: must be a number, not the text 'fast'"),
        ("up_mbps: 40", "up_mbps: true", "nodes[0].up_mbps: must be a number, not true"),
        ("up_mbps: 40", "up_mbps:", "nodes[0].up_mbps: must be a number, not nothing"),
        ("up_mbps: 40", "", "nodes[0].up_mbps: is required and missing"),
        ("name: desk", "name: 7", "nodes[0].name: must be text, not 7"),
        ("name: desk", "name: ''", "nodes[0].name: must not be empty"),
        ("name: desk", "name: ../evil", "nodes[0].name: must be a letter or digit, followed by at most 63"),
        ("name: desk", "name: a/../evil", "nodes[0].name: must be a letter or digit, followed by at most 63"),
        ("name: desk", 'name: "a\\nb"', "nodes[0].name: must be a letter or digit, followed by at most 63"),
        ("name: desk", f"name: {'d' * 65}", "nodes[0].name: must be a letter or digit, followed by at most 63"),
        ("device: cuda:0", "device: CUDA-0", "nodes[0].device: must be a device such as cpu, cuda or cuda:1"),
        ("gflops: 4200", "gflops: 1e300", "nodes[0].gflops: must be from 1e-09 to 1e+15, not 1e+300"),
        ("gflops: 4200", "gflops: 1e400", "nodes[0].gflops: must be a finite number"),
        ("memory_gb: 16", "memory_gb: 1e308", "nodes[0].memory_gb: must be from"),
        ("latency_ms: 3.1", "latency_ms: 1e300", "links[0].latency_ms: must be from"),
        ("gflops: 4200", f"gflops: 1{'0' * 400}", "nodes[0].gflops: is too large"),
        ("gflops: 4200", f"gflops: {'9' * 5000}", "holds a number of too many digits"),
        ("nodes:", f"deep: {'[' * 5000}", "is nested too deeply"),
        ("name: desk", "name: laptop", "nodes[1].name: 'laptop' is already the name of nodes[0]"),
        ("[desk, laptop]", "[desk, lapptop]", "links[0].between: no node is named 'lapptop'; did you mean 'laptop'?"),
        ("[desk, laptop]", "[desk]", "links[0].between[1]: is required and missing"),
        ("[desk, laptop]", "desk", "links[0].between: must be a list, not the text 'desk'"),
        ("latency_ms: 3.1", "latency_ms: -1", "links[0].latency_ms: must be 0 or more, not -1"),
        ("mbps: 93", "mbps: 93, jitter_ms: -2", "links[0].jitter_ms: must be 0 or more, not -2"),
        ("mbps: 93", "mbps: 93, jitter_ms: .nan", "links[0].jitter_ms: must be a finite number"),
        ("mbps: 300", "mbps: 300, jitter_ms: fast", "regions[0].jitter_ms: must be a number"),
        ("[fra, iad]", "[fra, iat]", "regions[0].between: no region is named 'iat'; did you mean 'iad'?"),
        ("gflops: 4200", "gflops: [", "line 6, column 12: is not valid YAML"),
        ("host: attic", "gflops: 1", "the key 'gflops' is given twice"),
    ],
)
def test_each_mistake_is_one_clear_line(nodes_yaml: Callable[[str], Path], old: str, new: str, message: str) -> None:
    path = nodes_yaml(NODES.replace(old, new, 1))
    error = refusal(lambda: load_fleet(path))
    assert message in str(error)
    assert str(error).startswith(f"{path}: ")
    assert "\n" not in str(error)


def test_jitter_is_none_unless_it_is_stated(nodes_yaml: Callable[[str], Path]) -> None:
    text = NODES.replace("mbps: 93", "mbps: 93, jitter_ms: 2").replace("mbps: 300", "mbps: 300, jitter_ms: 0.5")
    fleet = load_fleet(nodes_yaml(text))
    assert (fleet.links[0].jitter_s, fleet.regions[0].jitter_s) == (0.002, 0.0005)
    plain = load_fleet(nodes_yaml(NODES))
    assert (plain.links[0].jitter_s, plain.regions[0].jitter_s) == (0.0, 0.0)


def test_a_pair_given_in_both_directions_is_refused(nodes_yaml: Callable[[str], Path]) -> None:
    again = "  - {between: [laptop, desk], latency_ms: 9, mbps: 1}\nregions:"
    error = refusal(lambda: load_fleet(nodes_yaml(NODES.replace("regions:", again))))
    assert "links[1].between: 'laptop' and 'desk' are already joined by links[0]" in str(error)


def test_several_mistakes_give_several_lines(nodes_yaml: Callable[[str], Path]) -> None:
    text = NODES.replace("gflops: 4200", "gflops: -1").replace("mbps: 93", "mbp: 93")
    assert [line.split(": ")[1] for line in str(refusal(lambda: load_fleet(nodes_yaml(text)))).splitlines()] == [
        "nodes[0].gflops",
        "links[0].mbp",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty; expected a mapping with the keys nodes, links, regions"),
        ("- 1", "holds a list"),
        ("hello", "holds a single value"),
        ("nodes: []", "nodes: needs at least one entry"),
        ("nodes: 3", "nodes: must be a list, not 3"),
        ("nodes: [3]", "nodes[0]: must be a mapping, not 3"),
        ("nodes: !!python/object:os.system {}", "is not valid YAML: could not determine a constructor"),
        ("? [1]\n: 2", "is not valid YAML"),
        ("a: 2024-13-45", "is not valid YAML"),
        ("- " * 100_000 + "1", "is nested too deeply: 100 levels at most"),
        ("[" * 100_000 + "]" * 100_000, "is nested too deeply: 100 levels at most"),
    ],
)
def test_what_is_no_fleet_is_refused(nodes_yaml: Callable[[str], Path], text: str, message: str) -> None:
    assert message in str(refusal(lambda: load_fleet(nodes_yaml(text))))


def test_files_that_cannot_be_read_say_so(nodes_yaml: Callable[[str], Path], tmp_path: Path) -> None:
    nodes_yaml(NODES)
    assert "did you mean" in str(refusal(lambda: load_fleet(tmp_path / "node.yaml")))
    assert "there is no folder" in str(refusal(lambda: load_fleet(tmp_path / "x" / "nodes.yaml")))
    assert "is a folder" in str(refusal(lambda: load_fleet(tmp_path)))
    (tmp_path / "latin").write_bytes(b"\xff\xfe\xff")
    assert "is not UTF-8" in str(refusal(lambda: load_fleet(tmp_path / "latin")))


def test_one_file_given_for_another_is_told_in_one_line(
    nodes_yaml: Callable[[str], Path], plan: Plan, tmp_path: Path
) -> None:
    fleet, made = nodes_yaml(NODES), tmp_path / "plan.yaml"
    save_plan(plan, made)
    job = tmp_path / "job.yaml"
    job.write_text("{model: {factory: a:b}, data: {factory: a:c}}")
    assert str(refusal(lambda: load_plan(fleet))).endswith(
        "is a list of nodes (`ravnest plan` makes a plan for it); expected a plan"
    )
    assert "is a plan (`ravnest run` takes it); expected a list of nodes" in str(refusal(lambda: load_fleet(made)))
    assert "is a job (`ravnest plan NODES_YAML --job` takes it); expected a plan" in str(
        refusal(lambda: load_plan(job))
    )
    assert "expected a job" in str(refusal(lambda: read_validated(fleet, Choice)))


class Inner(BaseModel):
    model_config = ConfigDict(extra="forbid")
    factory: str


class Choice(BaseModel):
    model_config = ConfigDict(extra="forbid")
    loss: str | Inner
    metrics: dict[str, Inner] = {}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("loss: 3", "loss: must be text, or a mapping, not 3"),
        ("loss: {factry: a}", "loss.factry: is not a known key; did you mean 'factory'?"),
        ("loss: {factory: 3}", "nodes.yaml: loss.factory: must be text, not 3"),
        (
            "{loss: a, metrics: {acc: {factorie: a}}}",
            "metrics.acc.factorie: is not a known key; did you mean 'factory'?",
        ),
    ],
)
def test_other_schemas_get_the_same_care(nodes_yaml: Callable[[str], Path], text: str, message: str) -> None:
    assert message in str(refusal(lambda: read_validated(nodes_yaml(text), Choice)))


def test_a_fleet_comes_back_the_same_below_its_comments(nodes_yaml: Callable[[str], Path], tmp_path: Path) -> None:
    fleet = load_fleet(nodes_yaml(NODES))
    path = tmp_path / "measured.yaml"
    save_fleet(fleet, path, ["measured today\nwith care"])
    assert path.read_text().startswith("# measured today with care\nnodes:")
    assert load_fleet(path) == fleet


def test_a_nodes_data_factory_has_the_form_of_a_jobs(nodes_yaml: Callable[[str], Path]) -> None:
    given = NODES.replace("{args: {path: /mnt/corpus}}", "{factory: 'home data'}")
    assert "package.module:attribute" in str(refusal(lambda: load_fleet(nodes_yaml(given))))


def test_a_plan_comes_back_the_same(plan: Plan, tmp_path: Path) -> None:
    path = tmp_path / "plan.yaml"
    save_plan(plan, path)
    assert load_plan(path) == plan
    first = path.read_bytes()
    save_plan(load_plan(path), path)
    assert path.read_bytes() == first
    assert [p.name for p in tmp_path.iterdir()] == ["plan.yaml"]
    assert list(yaml.safe_load(first))[:4] == ["version", "job_file", "seed", "clusters"]


def test_a_plan_from_before_shorter_forms_on_the_wire_is_read(plan: Plan, tmp_path: Path) -> None:
    path = tmp_path / "plan.yaml"
    save_plan(plan, path)
    data = yaml.safe_load(path.read_text())
    del data["workload"]["averaged_bytes_per_parameter_byte"]
    del data["workload"]["averaging_state_bytes_per_parameter_byte"]
    del data["workload"]["activation_wire_ratio"], data["workload"]["gradient_wire_ratio"]
    path.write_text(yaml.safe_dump(data))
    assert load_plan(path).workload == plan.workload


def test_a_hand_edited_plan_is_validated(plan: Plan, tmp_path: Path) -> None:
    path = tmp_path / "plan.yaml"
    save_plan(plan, path)
    text = path.read_text()
    path.write_text(text.replace("units: [0, ", "units: [1, ", 1))
    assert "clusters[0].stages[0].units: must start at 0" in str(refusal(lambda: load_plan(path)))
    path.write_text(text.replace("version: 1", "version: 2", 1))
    assert "version: must be 1, not 2" in str(refusal(lambda: load_plan(path)))


@pytest.mark.parametrize(
    ("keys", "value", "message"),
    [
        (("clusters", 0, "stages", -1, "units"), [0, 8], "units: must start at"),
        (("clusters", 0, "stages", 0, "units"), [-1, 1], "units[0]: must be 0 or more"),
        (("clusters", 0, "stages", 0, "node"), "zzz", "clusters[0].stages[0].node: no node is named 'zzz'; there are"),
        (("clusters", 0, "window"), 0, "clusters[0].window: must be 1 or more, not 0"),
        (("clusters", 0, "window"), True, "clusters[0].window: must be a whole number, not true"),
        (("clusters", 0, "window"), 10**6, "clusters[0].window: must be from 1 to"),
        (("nodes", 0, "memory_gb"), 0.05, "nodes[fast0].memory_gb: is 0.05, but stage "),
        (("rings", 0, "members", 0, 0), "zzz", "rings[0].members: must be one stage of each cluster"),
        (("rings", 0, "members", 0, 1), 99, "rings[0].members: "),
        (("rings",), [], "rings: must be one ring per segment"),
        (("units", 0, "flops"), -1, "units[0].flops: must be 0 or more, not -1"),
        (("spares",), [{"node": "zz", "reason": "x"}], "spares[0].node: no node is named 'zz'; there are"),
        (("predicted", "clusters"), [], "predicted.clusters: must have one entry per cluster"),
        (("workload", "micro_batch"), 0, "workload.micro_batch: must be 1 or more, not 0"),
        (("version",), "1", "version: must be 1, not the text '1'"),
    ],
)
def test_each_bad_edit_of_a_plan_is_one_line(
    plan: Plan, tmp_path: Path, keys: tuple[str | int, ...], value: object, message: str
) -> None:
    path = tmp_path / "plan.yaml"
    save_plan(plan, path)
    document = inner = yaml.safe_load(path.read_text())
    for key in keys[:-1]:
        inner = inner[key]
    inner[keys[-1]] = value
    path.write_text(yaml.safe_dump(document))
    said = str(refusal(lambda: load_plan(path)))
    assert said.startswith(f"{path}: ")
    assert message in said
    assert "\n" not in said


def test_what_yaml_cannot_hold_is_refused_and_nothing_is_left(plan: Plan, tmp_path: Path) -> None:
    path = tmp_path / "plan.yaml"
    path.write_text("old")
    refused = refusal(lambda: save_plan(replace(plan, job={"a": object()}), path))
    assert "the job holds a value that YAML cannot" in str(refused)
    assert path.read_text() == "old"
    assert "cannot be written" in str(refusal(lambda: save_plan(plan, tmp_path / "no" / "plan.yaml")))


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    job=st.dictionaries(st.text(), plain, max_size=3),
    seed=st.integers(),
    stated=st.lists(st.floats(1e-3, 1e6), min_size=4, max_size=4),
    number=st.floats(1e-300, 1e300),
)
def test_any_plan_of_a_file_comes_back_bit_for_bit(
    plan: Plan, tmp_path: Path, job: dict[str, object], seed: int, stated: list[float], number: float
) -> None:
    nodes = tmp_path / "nodes.yaml"
    extra = "".join(
        f"\n  - {{name: {name}, gflops: {stated[0]!r}, memory_gb: {stated[1]!r}, up_mbps: {stated[2]!r}, "
        f"down_mbps: {stated[3]!r}, mtbf_hours: {stated[0]!r}}}"
        for name in plan.fleet.names
    )
    pair = f"latency_ms: {stated[0]!r}, mbps: {stated[1]!r}, jitter_ms: {stated[2]!r}"
    links = f"\nlinks: [{{between: [fast0, slow0], {pair}}}]"
    nodes.write_text(f"nodes:{extra}{links}\n")
    made = replace(
        plan, fleet=load_fleet(nodes), job=job, seed=seed, predicted=replace(plan.predicted, averaging_s=number)
    )
    save_plan(made, tmp_path / "plan.yaml")
    assert load_plan(tmp_path / "plan.yaml", has_run=True) == made  # whatever memory its nodes have


@pytest.mark.parametrize(
    "mark", ["\n", "\r", "\t", "\x85", "\u2028", "\u2029", "\ufeff", "\U0001f600", " ", "#", "NEL\x85 ends\n"]
)
def test_text_of_any_kind_comes_back_from_a_plan(plan: Plan, tmp_path: Path, mark: str) -> None:
    made = replace(plan, job={mark: f"a{mark}b{mark}", "list": [mark, f"{mark}b"]})
    save_plan(made, tmp_path / "plan.yaml")
    assert load_plan(tmp_path / "plan.yaml").job == made.job
