"""The Python door through Ray: the examples of its docstrings, and a job of callables of a script and of a module."""

import doctest
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import ravnest
from ravnest import api
from tests.support.commands import DEADLINE_S, JOBS, environment, with_machines
from tests.support.jobs import tiny

pytestmark = pytest.mark.timeout(600)

SCRIPT = '''
import json
from functools import partial

from torch.nn import functional

import ravnest
import door_parts


def make_model(layers):
    return door_parts.gpt(layers=layers, width=16)


def loss(output, target, smoothing=0.0):
    return functional.cross_entropy(output.flatten(0, -2), target.flatten(), label_smoothing=smoothing)


class Spread:
    """The mean distance of the outputs from zero."""

    def __call__(self, output, target):
        return output.abs().mean()


def sample(model, data):
    return f"weights of {sum(each.numel() for each in model.parameters())} numbers"


if __name__ == "__main__":
    job = ravnest.Job(
        model=partial(make_model, layers=3),
        data=door_parts.words,
        loss=partial(loss, smoothing=0.01),
        metrics=["accuracy", Spread],
        micro_batch=4,
        update_every=3,
        optimizer={"name": "adamw", "lr": 2.0e-2},
        average_every=96,
        stop={"samples": 100_000},
        sample=sample,
        seed=3,
    )
    plan = ravnest.plan("nodes.yaml", job, min_stages=2)
    phases = []

    class Watching:
        def on(self, event):
            phases.append(type(event).__name__)

    result = ravnest.run(plan, out="r", limit=ravnest.RunLimit(samples=240), observer=Watching())
    print(json.dumps([result.samples, result.held_out_loss, dict(result.metrics), result.sample_text, phases]))
'''


@pytest.fixture(autouse=True)
def _own_modules(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The jobs' modules of this process are those of one test alone."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    names = ("tiny", "door_parts", "door_script")
    before = {name: sys.modules.pop(name) for name in names if name in sys.modules}
    yield
    for name in names:
        sys.modules.pop(name, None)
    sys.modules.update(before)


def test_the_examples_of_the_docstrings_are_true(tmp_path: Path) -> None:
    """In the order of use, since each goes on from what the one before has made."""
    folder = with_machines(shutil.copytree(JOBS, tmp_path / "first"), ("a0", "b0"))
    names = {"ravnest": ravnest, "FOLDER": folder}
    runner = doctest.DocTestRunner()
    for function in (api.plan, api.run, api.simulate, api.evaluate, api.export):
        (example,) = doctest.DocTestFinder().find(function, globs=names)
        assert example.examples, function.__name__
        example.globs = names
        runner.run(example, clear_globs=False)
    assert runner.failures == 0


def test_a_job_of_a_scripts_and_a_modules_callables_trains_and_another_process_evaluates_it(tmp_path: Path) -> None:
    with_machines(tmp_path, ("a0", "b0"))
    shutil.copy(JOBS / "tiny.py", tmp_path / "door_parts.py")
    (tmp_path / "door_script.py").write_text(SCRIPT, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "door_script.py"],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    assert done.returncode == 0, done.stderr
    samples, loss, metrics, text, events = json.loads(done.stdout.splitlines()[-1])
    assert 240 <= samples < 100_000
    assert loss < tiny.words().baselines["guessing"]
    assert set(metrics) == {"accuracy", "door_script:Spread"}
    assert text.startswith("weights of ")
    assert any(name.startswith("CheckpointWritten") for name in events)
    plan = ravnest.load_plan(tmp_path / "r" / "plan.yaml")  # complete in itself: the script is not run again
    assert {key: plan.job[key] for key in ("loss", "sample")} == {
        "loss": {"function": "door_script:loss", "args": {"smoothing": 0.01}},
        "sample": {"factory": "door_script:sample", "args": {}},
    }
    evaluated = ravnest.evaluate(tmp_path / "r")
    assert evaluated.loss == pytest.approx(loss, rel=1e-6)
    assert evaluated.metrics == metrics
