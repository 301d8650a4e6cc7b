"""One run, from a plan to trained weights.

In: a plan, a folder to write to, and an observer. Out: a `RunResult`, or the error that ended the run, with advice how
to go on. The three steps stand in preparation.py, session.py and outcome.py.
"""

import shlex
import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from cluster_planner import Plan, load_plan, save_plan
from ravnest.checkpoints.run_folder import RunFolder, owned_folder
from ravnest.driver.beginning_again import begun_again
from ravnest.driver.imitation import Imitation, device_of
from ravnest.driver.node_requests import take_requests
from ravnest.driver.node_watch import NodeWatch
from ravnest.driver.observe import report
from ravnest.driver.outcome import finish
from ravnest.driver.preparation import Prepared, prepare
from ravnest.driver.ray.session import check_address
from ravnest.driver.ray.stage_actors import nodes_alive
from ravnest.driver.resuming import ResumedRun
from ravnest.driver.run_store import DriverState, TakenOver, load_state, plan_beside, plan_sum, plan_with_comers
from ravnest.driver.session import train
from ravnest.driver.signals import StopOnInterrupt
from ravnest.driver.taking_over import NothingToTakeOver, any_reached
from ravnest.errors import Interrupted, InvalidInput, NodeLost, NodeNotThere, NotWritten, RavnestError, RunFailed
from ravnest.recovery import Restarts
from ravnest.stage.device import require_device

_LEAST_S = 1.0
"""A run that begins again trains for at least so long, however little was left of its time."""


def run(
    plan: Plan,
    plan_path: Path | None = None,
    *,
    address: str | None = None,
    resume: bool = False,
    other_data: bool = False,
    out_dir: Path | None = None,
    observer: report.Observer,
    imitate: Imitation | None = None,
    encrypt: bool = False,
    timeline: bool = False,
    limit: report.RunLimit = report.NO_LIMIT,
) -> report.RunResult:
    """Train as the plan says and return what came of it.

    Where no cluster is left that trains, or a stage is lost before they do, the run begins again by itself, from its
    last checkpoint or from the start (beginning_again.py).

    In the main thread, Ctrl-C, SIGTERM and SIGHUP end the run with a checkpoint (see `StopOnInterrupt`). In another
    thread no handlers are set, because Python does not allow it.

    Arguments:
        plan_path: the file that the plan was read from, which is copied into the run's folder; None for a plan that was
            made in Python, which is written there.
        address: HOST:PORT of a running Ray cluster; None starts one on this machine and places every stage on it.
        resume: go on with the run whose folder it is: with its stages as they are where its driver was lost and they
            wait for another one (docs/takeover.md), else from its last checkpoint.
        other_data: resume although the data are not those of the checkpoint.
        out_dir: the run's folder; None makes a new one in runs/, or takes the newest there for a resume. No other
            process may write there meanwhile (ravnest/checkpoints/run_lock.py).
        observer: is told of each event.
        imitate: which of the plan's machines are imitated, and how fast; None imitates nothing.
        encrypt: tensors travel encrypted, with keys of this run and among its own processes alone.
        timeline: write trace.json.
        limit: an earlier end than the job's own.

    Raises:
        InvalidInput, RunFailed, NodeLost or Interrupted.
    """
    if address is not None:
        check_address(address)

    def tell(said: str) -> None:
        observer.on(report.NoticeEvent(said))

    if address is None:
        require_devices(plan, imitate)
    with (
        StopOnInterrupt() as interrupt,
        owned_folder(out_dir, resume=resume, tell=tell) as folder,
        NodeWatch(address, folder.ray_log) as nodes,
    ):
        take_requests(folder.path)  # of a session before this one
        taking = _to_take_over(folder, plan_path or folder.plan, address, tell) if resume else None
        restarts, watched, begun = Restarts(), _Watched(observer, folder.path), False

        def with_comers(plan: Plan) -> Plan:
            """The plan with whoever had come to the run, which is told."""
            alive = partial(nodes_alive, address=address, log=folder.ray_log)
            grown = plan_with_comers(folder.path, plan, plan_path or folder.plan, alive)
            if grown is not plan:
                names = [node.name for node in grown.fleet.nodes if node.name not in plan.fleet.names]
                tell(f"{', '.join(names)}, which had come to the run, may take part again")
            return grown

        plan = with_comers(plan) if resume else plan
        while True:
            prepared = prepare(
                plan if taking is None else taking[1],
                plan_path or folder.plan,
                folder.path,
                resume=resume,
                other_data=other_data,
                takes_over=None if taking is None else taking[0],
                observer=watched,
            )
            if taking is None:
                _begin(prepared, plan_path, rehearsal=imitate is not None, again=begun)
            nodes.start(folder.path)
            try:
                record, control = train(
                    prepared,
                    address,
                    imitate=imitate,
                    encrypt=encrypt,
                    timeline=timeline,
                    limit=watched.left_of(limit, prepared, 1.0 if imitate is None else imitate.speed),
                    observer=watched,
                    interrupt=interrupt,
                )
            except NothingToTakeOver as error:
                tell(f"{error}: resuming from the last checkpoint")
                taking = None
                interrupt.gracefully = False
                continue
            except RavnestError as error:
                gone = isinstance(error, NodeNotThere) and begun  # it was there when the run was planned
                if isinstance(error, TakenOver) or (isinstance(error, InvalidInput | Interrupted) and not gone):
                    raise
                anew, last = None, prepared.plan
                if isinstance(error, NodeLost | NodeNotThere) and not interrupt.wanted:
                    last = with_comers(prepared.plan)
                    wanted = partial(_wants_end, interrupt, folder.path)
                    anew = begun_again(restarts, prepared, last, address, str(error), watched, wanted)
                if anew is None:
                    advice = _advice(prepared, address, encrypt=encrypt, trained=watched.training)
                    raise _failure(error, prepared.folder.ray_log, advice) from error
                plan, plan_path = anew.plan, (plan_path if anew.plan is last else None)
                resume, other_data, taking, begun = anew.resumes, anew.resumes, None, True
                interrupt.gracefully = False
                continue
            return finish(prepared, record, control, encrypted=encrypt)


def _failure(error: RavnestError, ray_log: Path, advice: str | None) -> RunFailed:
    """The error with what helps: where Ray's own words are, and how to go on."""
    said = f"what Ray said is in {ray_log}" if ray_log.is_file() and ray_log.stat().st_size > 0 else None
    text = "; ".join(filter(None, (str(error), said, advice)))
    return type(error)(text) if isinstance(error, NodeLost | NotWritten) else RunFailed(text)


def _wants_end(interrupt: StopOnInterrupt, folder: Path) -> bool:
    """Whether the user wants a run to end that does not train now."""
    if take_requests(folder, ("stop", "stop_now")):
        raise Interrupted("ended before it began again, as it was asked to; --resume goes on from the last checkpoint")
    return interrupt.wanted


def _to_take_over(
    folder: RunFolder, plan_path: Path, address: str | None, tell: Callable[[str], None]
) -> tuple[DriverState, Plan] | None:
    """What the driver before has written down, and the plan as it was then, where stages may still be there; None where
    they are not to be taken over, and the run is resumed from its checkpoint. `tell` is told why."""
    try:
        state = load_state(folder.driver)
        if state is None:
            return None
        why = _why_not(state, plan_path, address)
        if why is None:
            return state, load_plan(plan_beside(folder.driver))
    except InvalidInput as error:
        why = str(error)
    tell(f"{why}: resuming from the last checkpoint")
    folder.driver.unlink(missing_ok=True)
    return None


def _why_not(state: DriverState, plan_path: Path, address: str | None) -> str | None:
    if state.plan != plan_sum(plan_path):
        return f"{plan_path} is not the plan of the run that was under way, whose stages end by themselves"
    if (state.address is None) != (address is None):
        return f"the run that was under way was {'without' if state.address is None else 'with'} a Ray cluster"
    if not any_reached((at.host, at.pipeline_port) for at in state.stages.values()):
        return "no stage of the run that was under way can be reached any more"
    return None


def require_devices(plan: Plan, imitate: Imitation | None) -> None:
    """Raises InvalidInput, which names the node, where a stage of `plan` needs a device that this machine lacks."""
    for cluster in plan.clusters:
        for stage in cluster.stages:
            try:
                require_device(device_of(plan, stage, imitate))
            except RunFailed as error:
                raise InvalidInput(
                    str(error),
                    key=f"nodes.{stage.node}.device",
                    hint="without --address all stages run on this machine; `ravnest rehearse` imitates the nodes on"
                    " its processor",
                ) from None


def _begin(prepared: Prepared, plan_path: Path | None, *, rehearsal: bool, again: bool) -> None:
    """Make the run's folder and write the plan into it."""
    if plan_path is not None:
        prepared.folder.begin(plan_path, rehearsal=rehearsal, again=again)
        return
    with tempfile.TemporaryDirectory(prefix="ravnest-plan-") as folder:
        written = Path(folder) / "plan.yaml"
        save_plan(prepared.plan, written)
        prepared.folder.begin(written, rehearsal=rehearsal, again=again)


class _Watched:
    """Passes every event to the observer, and remembers whether `training` has begun, and for how long it went.

    Until the loop takes users' requests to end the run, the steps before it do so, as Ctrl-C does: Interrupted.
    """

    def __init__(self, observer: report.Observer, folder: Path) -> None:
        self._observer = observer
        self._folder = folder
        self.training = False
        self._earlier_s = 0.0
        self._this_s = 0.0

    def on(self, event: report.RunEvent) -> None:
        if event == report.PhaseEvent("training"):
            self.training = True
            self._earlier_s, self._this_s = self._earlier_s + self._this_s, 0.0
        elif isinstance(event, report.ProgressEvent):
            self._this_s = event.elapsed_s
        self._observer.on(event)
        before = isinstance(event, report.PhaseEvent) and event.name in report.PHASES_BEFORE_TRAINING
        if before and take_requests(self._folder, ("stop", "stop_now")):
            raise Interrupted("ended before training, as it was asked to")

    @property
    def trained_s(self) -> float:
        """For how long the run has trained since it last began."""
        return self._this_s

    def left_of(self, limit: report.RunLimit, prepared: Prepared, speed: float) -> report.RunLimit:
        """What is left of the limit, and of the job's minutes, after what was trained before the run began again."""
        spent_s = self._earlier_s + self._this_s
        if not spent_s:
            return limit
        minutes = prepared.job.stop.minutes
        ends_s = [each for each in (limit.seconds, None if minutes is None else 60.0 * minutes / speed) if each]
        return replace(limit, seconds=max(_LEAST_S, min(ends_s) - spent_s)) if ends_s else limit


def _advice(prepared: Prepared, address: str | None, *, encrypt: bool, trained: bool) -> str | None:
    """A sentence on how to go on after a failure, or None where nothing is lost.

    A resume is advised only where the last checkpoint has been found complete and of this plan.
    """
    if not prepared.folder.has_checkpoint:
        return "there was no checkpoint yet" if trained else None
    try:
        checkpoint = ResumedRun.load(prepared.folder, prepared.plan, prepared.job).checkpoint
    except InvalidInput as error:
        return f"it cannot be resumed as it is: {error}"
    command = ["ravnest", "run", str(prepared.plan_path), "--resume", "--out", str(prepared.folder.path)]
    command += [] if address is None else ["--address", address]
    if encrypt != (address is not None):
        command.append("--encrypt" if encrypt else "--no-encrypt")
    return f"go on from {checkpoint.folder.name} with: {shlex.join(command)}"
