"""What `ravnest init` writes plans and trains as it is; nothing of the user's is replaced."""

import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean

import pytest

from cluster_planner import load_fleet, make_plan
from ravnest.errors import InvalidInput
from ravnest.job.config import load_job
from ravnest.job.materials import capture_job, load_data
from ravnest.planning.workload import workload
from ravnest.templates import KINDS, Answers, write_first_files
from ravnest.templates.first_files import FEWEST_ROUNDS, MICRO_BATCHES_PER_S
from tests.support.local import plan_with
from tests.unit.examples.test_training import trained


@pytest.fixture(autouse=True)
def _modules_of_one_job(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Each job's folder has modules of these names."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in ("model", "data"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield
    for name in ("model", "data"):
        sys.modules.pop(name, None)


def answers(**changes: object) -> Answers:
    given: dict[str, object] = {
        "kind": "text",
        "machines": ["desk", "attic"],
        "hardware": ["laptop"],
        "mbps": 40.0,
        "minutes": 5.0,
    }
    return Answers(**{**given, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_trains_in_clusters_of_two_stages_and_of_one_and_its_loss_falls(kind: str, tmp_path: Path) -> None:
    write_first_files(tmp_path, answers(kind=kind))
    _, _, result = trained(str(tmp_path), (2, 1), stop={"samples": 1500}, average_every=96)
    assert set(result.losses) == {"c0", "c1"}
    for losses in result.losses.values():
        assert fmean(losses[-6:]) < 0.95 * fmean(losses[:6])


def test_the_files_say_what_was_answered(tmp_path: Path) -> None:
    made = write_first_files(tmp_path / "new" / "one", answers(hardware=["rtx 3060", "desktop"], minutes=7.5))
    assert [path.name for path in made] == ["job.yaml", "nodes.yaml", "model.py", "data.py"]
    fleet = load_fleet(made[1])
    assert [(node.name, node.device) for node in fleet.nodes] == [("desk", "cuda"), ("attic", "cpu")]
    assert [node.up_bytes_per_s for node in fleet.nodes] == [5e6, 5e6]
    assert load_job(made[0]).stop.minutes == 7.5


@pytest.mark.parametrize("kind", KINDS)
def test_the_comments_behind_keys_line_up(kind: str, tmp_path: Path) -> None:
    lines = write_first_files(tmp_path, answers(kind=kind))[0].read_text(encoding="utf-8").splitlines()
    behind = [line.index("#") for line in lines if "#" in line and not line.startswith("#")]
    assert len(behind) == 4
    assert len(set(behind)) == 1


FAST = (["rtx 3060"], 100.0)


@pytest.mark.parametrize("kind", KINDS)
def test_the_planner_lets_all_machines_train_whatever_they_have(kind: str, tmp_path: Path) -> None:
    write_first_files(tmp_path / "costs", answers(kind=kind))
    job = load_job(tmp_path / "costs/job.yaml")
    job_file = str(tmp_path / "costs/job.yaml")
    captured = capture_job(job, job_file, load_data(job, job_file))
    costs = plan_with(job, captured, [[]]).costs
    assert costs.parameter_bytes == pytest.approx(1e6 * KINDS[kind].weights_mb, rel=0.05)
    flops = 3 * sum(unit.flops for unit in costs.units)
    assert flops == pytest.approx(1e9 * KINDS[kind].gflop_per_sample, rel=0.1)
    for hardware, mbps in ((["laptop"], 40.0), (["desktop"], 40.0), (["laptop"], 5.0), (["rtx 3060"], 40.0), FAST):
        folder = tmp_path / f"{hardware[0]}-{mbps:g}"
        made = write_first_files(folder, answers(kind=kind, hardware=hardware, mbps=mbps))
        plan = make_plan(load_fleet(made[1]), costs, workload(load_job(made[0])), job={}, job_file="job.yaml")
        assert {stage.node for cluster in plan.clusters for stage in cluster.stages} == {"desk", "attic"}, hardware
        rounds = 300 * plan.predicted.samples_per_s / load_job(made[0]).average_every
        assert rounds >= FEWEST_ROUNDS, "in five minutes"


@pytest.mark.parametrize("hardware", [["laptop"], ["rtx 3060"], ["h100", "laptop"]])
@pytest.mark.parametrize("kind", KINDS)
def test_ten_rounds_and_five_evaluations_fit_into_three_minutes_of_processors_whatever_hardware_was_said(
    kind: str, hardware: list[str], tmp_path: Path
) -> None:
    job = load_job(write_first_files(tmp_path, answers(kind=kind, hardware=hardware, minutes=3.0))[0])
    samples_per_s = 2 * min(20.0 / KINDS[kind].gflop_per_sample, MICRO_BATCHES_PER_S * job.micro_batch)
    assert 180 * samples_per_s >= 10 * job.average_every
    assert 180 * samples_per_s >= 5 * (job.evaluate_every or 0) > 0


def test_no_file_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text("mine")
    with pytest.raises(InvalidInput, match=r"model\.py is there already"):
        write_first_files(tmp_path, answers())
    assert [path.name for path in tmp_path.iterdir()] == ["model.py"]
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidInput, match="cannot be written"):
        write_first_files(tmp_path / "file" / "job", answers())


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"kind": "music"}, "kind"),
        ({"machines": ["a", "a"]}, "machines"),
        ({"machines": [""]}, "machines"),
        ({"machines": ["a/b"]}, "machines"),
        ({"hardware": ["laptop"] * 3}, "hardware"),
        ({"mbps": 0.0}, "mbps"),
        ({"minutes": float("nan")}, "minutes"),
    ],
)
def test_an_answer_that_makes_no_sense_is_named(changes: dict[str, object], key: str) -> None:
    with pytest.raises(InvalidInput) as raised:
        answers(**changes)
    assert raised.value.key == key
