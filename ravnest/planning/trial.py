"""Tries the stages of a plan in a fresh process before the plan is given out.

In: a plan, its job, the captured model and its weights. Out: nothing, or an InvalidInput that says which stage could
not train or evaluate, and why. What planning accepts must train: what only a run would meet (an operator that nobody
registers in a stage, a tensor that cannot be sent, held-out samples of another length) is met here.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType

from torch import Tensor

import ravnest
from cluster_planner import Plan
from ravnest.checkpoints.durable_files import DurableFiles
from ravnest.errors import InvalidInput
from ravnest.job.config import Job
from ravnest.job.materials import search_dirs
from ravnest.planning.kept_checks import WAYS, Way, recomputing_ways
from ravnest.planning.mapped_weights import Place
from ravnest.planning.workload import evaluation_batch
from ravnest.splitting import CapturedModel
from ravnest.splitting.plain_programs import as_plain

LEAST_S = 300.0
"""The least time that all stages together may take in their trial."""
PATIENCE = 50.0
"""How many times the duration of the check in this process they may take, where that is more."""
_SHOWN = 300  # characters of what the process wrote last


def try_plan(
    plan: Plan,
    job: Job,
    job_file: str | Path,
    captured: CapturedModel,
    weights: Mapping[str, Tensor],
    check_s: float,
    *,
    short: bool = False,
    places: Mapping[str, Place] = MappingProxyType({}),
) -> None:
    """Train and evaluate once with each different pipeline of the plan, in a fresh process.

    captured: the model that was planned, or where `short`, one with fewer blocks: then each of its units is tried as a
    stage of its own. weights: the model's initial weights by original name. check_s: seconds that the check against the
    model took. places: where the bytes of large weights are, by name; the others are written.
    Raises InvalidInput at the job file, for what would have failed in the run.
    """
    try:
        with TemporaryDirectory(prefix="ravnest-trial-") as temporary:
            folder = Path(temporary)
            whole = captured.span(0, len(captured.units))
            wanted = {spec.name: weights[spec.name] for spec in whole.weight_specs if spec.name not in places}
            said = _described(plan, job, job_file, captured, short)
            said["places"] = {
                spec.name: [*places[spec.name], list(spec.shape), str(spec.dtype).removeprefix("torch.")]
                for spec in whole.weight_specs
                if spec.name in places
            }
            (folder / "trial.json").write_text(json.dumps(said))
            DurableFiles().write_tensors(folder / "weights.safetensors", wanted)
            told = in_fresh_process(folder, max(LEAST_S, PATIENCE * check_s))
    except OSError as error:
        raise InvalidInput(
            f"the stages cannot be tried: {error.strerror or error} ({error.filename}); trying them takes a temporary"
            " folder for the model's weights, which TMPDIR names"
        ) from error
    if told:
        key = told.get("key") or "model"
        raise InvalidInput(str(told["message"]), path=told.get("path") or str(job_file), key=key, hint=told.get("hint"))


def in_fresh_process(folder: Path, deadline_s: float) -> Mapping[str, str | None]:
    """What trial_process writes about the trial in `folder`. Raises InvalidInput where it dies, or takes too long."""
    root = str(Path(ravnest.__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))}
    command = [sys.executable, "-P", "-m", "ravnest.planning.trial_process", str(folder)]
    with (folder / "output").open("w+b") as output:
        try:
            ended = subprocess.run(
                command, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output, timeout=deadline_s
            )
        except subprocess.TimeoutExpired:
            raise InvalidInput(
                f"the stages have not trained one micro-batch and evaluated two batches within {deadline_s:.0f} s"
            ) from None
        output.seek(0)
        written = " ".join(output.read().decode(errors="replace").split())
    if ended.returncode == 0:
        told: dict[str, str | None] = json.loads((folder / "result.json").read_text())
        return told
    if ended.returncode < 0:
        how = f"was killed by {signal.Signals(-ended.returncode).name}"
        hint = "; does the memory of this machine suffice?" if ended.returncode == -signal.SIGKILL else ""
    else:
        how, hint = f"ended with {ended.returncode}", ""
    raise InvalidInput(f"the process that tried the stages {how}{hint}: {written[-_SHOWN:]}")


def _stage(captured: CapturedModel, way: Way, start: int, end: int) -> dict[str, object]:
    apart = range(start, end) if way == "unit by unit" else ()
    return {
        "recomputes": way != "",
        "program": as_plain(captured.span(start, end)),
        "units": [as_plain(captured.span(unit, unit + 1)) for unit in apart],
    }


def _described(plan: Plan, job: Job, job_file: str | Path, captured: CapturedModel, short: bool) -> dict[str, object]:
    pipelines: dict[object, tuple[str, list[object]]] = {}
    for cluster in plan.clusters:
        ways = recomputing_ways(plan, cluster)
        cut = tuple((way, stage.units) for way, stage in zip(ways, cluster.stages, strict=True))
        if short:
            way = max(ways, key=WAYS.index)
            cut = tuple((way, (unit, unit + 1)) for unit in range(len(captured.units)))
        if cut not in pipelines:
            pipelines[cut] = (cluster.name, [_stage(captured, way, *units) for way, units in cut])
    return {
        "job": job.model_dump(mode="json"),
        "job_file": str(job_file),
        "search_dirs": [str(folder) for folder in search_dirs(job_file)],
        "pipelines": list(pipelines.values()),
        "data": plan.data,
        "evaluation": [evaluation_batch(job, captured), captured.batch_is_dynamic],
    }
