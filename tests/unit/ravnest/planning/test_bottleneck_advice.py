"""Bottlenecks in the advice of a plan: what it says is what planning with them gives."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster_planner import Fleet, Node, Plan
from ravnest.cli.views.plan import plan_document
from ravnest.planning.prepare_plan import prepare_plan
from tests.support.local import job_in

MODEL = Path(__file__).parents[4] / "examples" / "home" / "model.py"
DATA = """
from types import SimpleNamespace
import torch
from torch.utils.data import TensorDataset

def random():
    part = TensorDataset(torch.randint(0, 97, (64, 64)), torch.randint(0, 97, (64, 64)))
    return SimpleNamespace(train=part, held_out=part)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the job's code: modules of one name may lie in one place alone."""
    found = tmp_path_factory.mktemp("advised")
    shutil.copy(MODEL, found / "advised_gpt.py")
    (found / "advised_data.py").write_text(DATA)
    return found


def planned(folder: Path, up_mbps: float, bottlenecks: list[Any], wire: str = "float32") -> Plan:
    """The plan of the home example's GPT over so many machines, none of which holds it alone."""
    args = {"vocab": 97, "layers": 4, "width": 96, "heads": 4, "context": 64}
    job = job_in(
        folder,
        model={"factory": "advised_gpt:gpt", "args": args, "bottlenecks": bottlenecks},
        data={"factory": "advised_data:random"},
        loss="cross_entropy",
        wire={"activations": wire, "gradients": wire},
        micro_batch=4,
        update_every=4,
        optimizer={"name": "adamw", "lr": 1e-3},
        average_every=1024,
        stop={"samples": 16000},
        evaluate_every=4000,
    )
    each = {"flops_per_s": 1e11, "memory_bytes": 2 * 10**9, "up_bytes_per_s": up_mbps * 125e3}
    fleet = Fleet(tuple(Node(name=f"n{i}", down_bytes_per_s=1e7, **each) for i in range(3)))  # type: ignore[arg-type]
    return prepare_plan(fleet, job, min_stages=3, check="none", cache=False, step=lambda words: None).plan


def advised(plan: Plan) -> tuple[list[Any], float]:
    """The bottlenecks that the advice names, and the samples/s that it promises with them."""
    found = re.search(
        r"; with int4 as wire and model\.(bottlenecks: \[.*?\]), planned anew, ([0-9.]+) samples/s",
        plan.predicted.advice,
    )
    assert found is not None, plan.predicted.advice
    return yaml.safe_load(found[1])["bottlenecks"], float(found[2])


def test_what_is_advised_gives_what_is_promised(folder: Path) -> None:
    plan = planned(folder, 5, [])
    bottlenecks, samples_per_s = advised(plan)

    assert len(bottlenecks) == 2
    assert all((one["features"], one["width"]) == (96, 24) for one in bottlenecks)
    assert samples_per_s > 2 * plan.predicted.samples_per_s
    with_them = planned(folder, 5, bottlenecks, wire="int4")
    assert with_them.predicted.samples_per_s == pytest.approx(samples_per_s, rel=0.02)
    document = json.dumps(plan_document(plan, Path("plan.yaml"), Path("plan.png")))
    assert json.dumps(plan.predicted.advice) in document


def test_where_bytes_do_not_limit_none_is_advised(folder: Path) -> None:
    assert "bottlenecks" not in planned(folder, 1000, []).predicted.advice
