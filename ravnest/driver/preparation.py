"""What is known of a run before its stages train: its inputs, and the state that each stage starts from.

In: a plan, the run's folder, and whether the run is resumed. Out: a `Prepared`, with the job, its data and the captured
model, and then a `StageState` for each stage: the initial weights of a new run, or the last checkpoint of a resumed
one. A resume takes every cluster back to the anchor of the checkpoint's round; progress that was pending then is
dropped. `prepare` starts nothing and writes nothing, so that all mistakes in a user's input are told before the run
begins.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from torch import Tensor

from cluster_planner import Plan
from ravnest.checkpoints.checkpoint import CheckpointWriter
from ravnest.checkpoints.run_folder import RunFolder, choose_folder
from ravnest.checkpoints.weight_files import StoredPieces, StoredTensors
from ravnest.driver import instructions as ins
from ravnest.driver.observe import report
from ravnest.driver.resuming import (
    ResumedRun,
    check_same_as_before,
    data_made_with,
    made_with,
    resumed_optimizer,
    resumed_weights,
)
from ravnest.driver.run_store import DriverState, SessionStart
from ravnest.driver.stage_setups import check_fingerprint
from ravnest.errors import InvalidInput, naming
from ravnest.job.config import Job, job_from_mapping
from ravnest.job.initial_weights import WeightsFromSeed
from ravnest.job.job_of_plan import differs
from ravnest.job.materials import JobData, capture_job, check_shares, load_data, total_samples
from ravnest.job.pretrained import PretrainedWeights, pretrained_weights
from ravnest.planning.workload import check_workload
from ravnest.splitting import CapturedModel
from ravnest.stage import messages as m
from ravnest.stage.setup import StageSetup
from ravnest.training.fingerprint import fingerprint
from ring_allreduce.transport import Endpoint, Lane, Outbox

HANDED_PIECE_BYTES: Final = 1 << 20
"""The most bytes of a stored tensor that are read, and sent to a stage, at a time."""


@dataclass(frozen=True)
class Prepared:
    """A run that is ready to start: its plan, its job and its data, the captured model, and where it goes on."""

    plan: Plan
    plan_path: Path
    job: Job
    data: JobData
    captured: CapturedModel
    folder: RunFolder
    resumed: ResumedRun | None
    initial: PretrainedWeights | WeightsFromSeed | None
    """The weights that a new run starts from; None for a resumed one."""
    total_samples: int | None
    """Samples of the fleet at which the run ends; None when it ends by time."""
    fingerprint: str = ""
    """Which data they are, in a few characters."""
    takes_over: DriverState | None = None
    """What the driver before has written down, of a session whose stages are still there; None to start stages."""

    @property
    def start(self) -> ResumedRun | SessionStart | None:
        """Where the session began; None for a new run."""
        return self.resumed if self.takes_over is None else self.takes_over.start

    @property
    def rounds_before(self) -> int:
        """Rounds of the sessions before this one; 0 for a new run."""
        return 0 if self.start is None else self.start.rounds


def prepare(
    plan: Plan,
    plan_path: Path,
    out_dir: Path | None,
    *,
    resume: bool,
    other_data: bool = False,
    takes_over: DriverState | None = None,
    observer: report.Observer,
) -> Prepared:
    """Read and check everything that a run needs. Nothing is written.

    `other_data`: a resume may go on with other data than its checkpoint was made with. `takes_over`: what the driver of
    a session under way has written down, which is taken over.

    Raises InvalidInput where the plan, the job, the user's code, the data or the checkpoint do not fit together, or
    where a resumed run has nothing left to do.
    """
    job = job_from_mapping(plan.job, path=str(plan_path), under="job.")
    check_workload(plan, job, plan_path)
    folder = choose_folder(out_dir, resume=resume)
    resumed = ResumedRun.load(folder, plan, job) if resume and takes_over is None else None
    for text in () if resumed is None else resumed.notices:
        observer.on(report.NoticeEvent(text))
    if differs(job, plan.workload, plan.job_file):
        observer.on(
            report.NoticeEvent(f"{plan.job_file} has changed since the plan was made: the job in the plan counts")
        )
    if not Path(plan.job_file).parent.is_dir():
        raise InvalidInput(
            f"the job's folder {Path(plan.job_file).parent} is gone: plan again where the job lies now",
            path=str(plan_path),
            key="job_file",
        )
    observer.on(report.PhaseEvent("preparing", "reading the data and capturing the model"))
    data = load_data(job, plan.job_file)
    with naming(plan.job_file):
        found = fingerprint(data.train, data.held_out)
    if resumed is not None and not other_data:
        check_same_as_before(resumed.checkpoint.manifest.made_with, found, folder.path)
    if takes_over is not None and takes_over.data != found:
        raise InvalidInput(
            f"the run is under way with other data ({takes_over.data}, now {found})",
            path=str(folder.path),
            key="data",
            hint="bring the same data, or wait until its stages have ended and resume with --other-data",
        )
    if resumed is None and plan.data not in ("", found):
        observer.on(report.NoticeEvent(f"the data have changed since the plan was made ({plan.data}, now {found})"))
    captured = capture_job(job, plan.job_file, data)
    check_fingerprint(plan, captured, plan_path)
    initial = None if resume else initial_weights(job, plan.job_file, captured)
    if initial is not None and (why := initial.whole_because):
        observer.on(report.NoticeEvent(f"this process makes the weights of the whole model and sends them ({why})"))
    total = total_samples(job, len(data.train), plan.job_file)
    check_shares(job, plan.job_file, plan, data.train)
    if resumed is not None and total is not None and resumed.samples >= total:
        raise InvalidInput(
            f"the run has made {resumed.samples} of {total} samples: nothing is left to do; plan again with a later"
            " `stop` to go on",
            path=str(folder.path),
        )
    return Prepared(plan, plan_path, job, data, captured, folder, resumed, initial, total, found, takes_over)


def initial_weights(job: Job, job_file: str | Path, captured: CapturedModel) -> PretrainedWeights | WeightsFromSeed:
    """The weights that a new run starts from: those of files where the job names some, or else those of its seed.

    Raises InvalidInput where the files do not fit the model.
    """
    pretrained = pretrained_weights(job, job_file, captured)
    return WeightsFromSeed(job, job_file) if pretrained is None else pretrained


def check_same_data(
    prepared: Prepared, samples: Mapping[str, tuple[int, int] | None], nodes: Mapping[str, str]
) -> None:
    """Raises InvalidInput where a stage reads another number of samples than this process: stages would then take
    different samples for the same one.

    `samples` gives by stage the numbers of training and held-out samples, and `nodes` the node that it runs on.
    """
    here = (len(prepared.data.train), len(prepared.data.held_out))
    for stage, found in samples.items():
        if found is not None and found != here:
            raise InvalidInput(
                f"{nodes[stage]!r} reads {found[0]:,} training and {found[1]:,} held-out samples, and this machine"
                f" {here[0]:,} and {here[1]:,}: all must read the same data (`data` of that node in nodes.yaml)",
                path=str(prepared.plan_path),
                key=f"nodes.{nodes[stage]}.data",
            )


@dataclass(frozen=True)
class StageState:
    """What one stage starts from.

    `weights` are by original name. `optimizer` is by (parameter name, state key), and empty when a run first starts.
    `version` is the number of updates that the stage has made.
    """

    weights: Mapping[str, Tensor]
    optimizer: Mapping[tuple[str, str], Tensor]
    version: int


def needed(setup: StageSetup) -> list[str]:
    """The original names of a stage's weights and buffers, with those that it borrows."""
    return [spec.name for spec in setup.program.weight_specs]


def sent(setup: StageSetup) -> list[str]:
    """Those of the `needed` tensors that the stage does not make itself."""
    made = setup.made_names
    return [name for name in needed(setup) if name not in made]


def hand_out(
    outbox: Outbox,
    endpoint: Endpoint,
    setups: Iterable[StageSetup],
    states: Mapping[str, StageState],
    anchor_of: int = 0,
    held: Mapping[str, Collection[str]] = MappingProxyType({}),
) -> None:
    """Queue the state of each stage, without what it makes itself, and tell each how many tensors to expect.

    `anchor_of`: the round of this session whose anchor the weights are, for stages that join the run. `held`: by stage,
    the weights that it has read from files of its own machine.
    """
    for setup in setups:
        outbox.forget(setup.name)
        state = states[setup.name]
        names = [name for name in sent(setup) if name not in held.get(setup.name, ())]
        for name in names:
            for piece, tensors in _pieces(partial(m.StateTensor, part="weight", name=name), state.weights, name):
                outbox.put(setup.name, piece, tensors)
        for place in state.optimizer:
            name, key = place
            head = partial(m.StateTensor, part="optimizer", name=name, key=key)
            for piece, tensors in _pieces(head, state.optimizer, place):
                outbox.put(setup.name, piece, tensors)
        begin = m.Begin(tensors=len(names) + len(state.optimizer), version=state.version, round=anchor_of)
        endpoint.send(setup.name, Lane.PIPELINE, begin)


def _pieces(
    head: Callable[..., m.StateTensor], tensors: Mapping[Any, Tensor], key: Any
) -> Iterator[tuple[m.StateTensor, Sequence[Tensor] | Callable[[], Sequence[Tensor]]]]:
    """The messages that carry a tensor: one that lies in a file in pieces, each read when there is room for it."""
    stored = tensors.in_pieces(key) if isinstance(tensors, StoredTensors | PretrainedWeights) else None
    if stored is None:
        yield head(), [tensors[key]]
        return
    step = max(1, HANDED_PIECE_BYTES // stored.dtype.itemsize)
    for start in range(0, max(1, stored.elements), step):
        yield head(shape=stored.shape, start=start), partial(_read, stored, start, min(stored.elements, start + step))


def _read(stored: StoredPieces, start: int, stop: int) -> list[Tensor]:
    return [stored.read(start, stop)]


def states_for(
    setups: Mapping[str, StageSetup],
    plan: Plan,
    job: Job,
    resumed: ResumedRun | None,
    initial: Mapping[str, Tensor] | None = None,
) -> dict[str, StageState]:
    """The state that each stage starts from, by stage.

    A resumed run takes it from its checkpoint. A new one starts from the `initial` weights, or else from those that the
    job's seed gives; each is made when it is asked for. Raises InvalidInput where the checkpoint lacks something that
    these stages would have saved.
    """
    weights: Mapping[str, Tensor]
    if resumed is not None:
        weights = resumed_weights(setups, plan, job, resumed)
    else:
        weights = WeightsFromSeed(job, plan.job_file) if initial is None else initial
    return {
        stage: StageState(
            weights=weights,
            optimizer={} if resumed is None else resumed_optimizer(setups, setup, resumed),
            version=0 if resumed is None else resumed.updates[setup.cluster],
        )
        for stage, setup in setups.items()
    }


def writer_opener(
    folder: RunFolder, plan: Callable[[], Plan], job: Job, resumed: ResumedRun | SessionStart | None, data: str = ""
) -> Callable[[ins.BeginCheckpoint], CheckpointWriter]:
    """A function that opens the writer of one checkpoint. Rounds count on from the session that was resumed.
    `plan` gives the plan as it is then; `data` is the fingerprint of the data."""
    rounds_before = 0 if resumed is None else resumed.rounds

    def begin(begun: ins.BeginCheckpoint) -> CheckpointWriter:
        return CheckpointWriter(
            folder.checkpoints,
            round=rounds_before + begun.round,
            samples=begun.samples,
            versions=begun.updates,
            made_with=made_with(plan(), job) | data_made_with(data),
            lost=begun.lost,
            unmade=begun.unmade,
            keep=job.checkpoints.keep,
        )

    return begin
