"""One run, from a plan to trained weights.

In: a plan, a folder to write to, and an observer. Out: a `RunResult`, or the error that ended the run, with advice how
to go on. The three steps stand in preparation.py, session.py and outcome.py.
"""

import shlex
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from cluster_planner import Plan, save_plan
from ravnest.checkpoints.run_folder import RunFolder, owned_folder
from ravnest.driver.beginning_again import AllSessions, begun_again
from ravnest.driver.imitation import Imitation, device_of
from ravnest.driver.node_requests import take_requests
from ravnest.driver.node_watch import NodeWatch
from ravnest.driver.observe import report
from ravnest.driver.observe.metrics_file import MetricsWriter, last_record
from ravnest.driver.outcome import finish
from ravnest.driver.planning_anew import PlanningProcess, PlansAnew
from ravnest.driver.preparation import Prepared, prepare
from ravnest.driver.ray.planned_nodes import nodes_alive
from ravnest.driver.ray.session import check_address
from ravnest.driver.resuming import ResumedRun
from ravnest.driver.run_store import DriverState, TakenOver, load_plan_beside, load_state, plan_sum, plan_with_comers
from ravnest.driver.session import train
from ravnest.driver.shut_out import plan_without, read_shut_out
from ravnest.driver.signals import StopOnInterrupt
from ravnest.driver.taking_over import NothingToTakeOver, any_reached
from ravnest.driver.while_waiting import wants_end
from ravnest.errors import Interrupted, InvalidInput, NodeLost, NodeNotThere, NotWritten, RavnestError, RunFailed
from ravnest.factories import describe
from ravnest.formatting import clause
from ravnest.recovery import NodesLeft, Restarts
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
    else:
        require_devices(plan, imitate, plan_path)
    with (
        StopOnInterrupt() as interrupt,
        owned_folder(out_dir, resume=resume, tell=lambda said: observer.on(report.NoticeEvent(said))) as folder,
        NodeWatch(address, folder.ray_log) as nodes,
    ):
        take_requests(folder.path)  # of a session before this one
        how = _How(address, imitate, encrypt, timeline, limit)
        watched = _Watched(observer, folder.path)
        sessions = _Sessions(how, plan, plan_path, folder, watched, interrupt, nodes, resume, other_data)
        try:
            return sessions.until_the_end()
        except (InvalidInput, TakenOver):
            raise  # it did not begin, or is another driver's now
        except (Exception, KeyboardInterrupt) as error:
            if folder.plan.is_file():
                _write_down(error, folder.metrics)
            raise


@dataclass(frozen=True)
class _How:
    """How all sessions of a run go: see `run`."""

    address: str | None
    imitate: Imitation | None
    encrypt: bool
    timeline: bool
    limit: report.RunLimit


@dataclass
class _Sessions:
    """The sessions of a run, one after another, until one comes to the end of the job."""

    how: _How
    plan: Plan
    plan_path: Path | None
    folder: RunFolder
    watched: "_Watched"
    interrupt: StopOnInterrupt
    nodes: NodeWatch
    resume: bool
    """Whether the next session goes on from the last checkpoint."""
    other_data: bool
    restarts: Restarts = field(default_factory=Restarts)
    left: NodesLeft = field(default_factory=NodesLeft)
    """The nodes that have left with notice: no session starts anything there before they are back."""
    taking: tuple[DriverState, Plan] | None = None
    """What the next session takes over of another driver's."""
    begun: bool = False
    """Whether the run has begun again."""
    replanned: bool = False
    """Whether it has made its plan itself."""

    def until_the_end(self) -> report.RunResult:
        """Train. Raises the error that ended the run."""
        if self.resume:
            for node, reason in read_shut_out(self.folder.shut_out).items():
                self.left.shut_out(node, reason)
            self.taking = _to_take_over(self.folder, self._read_from, self.how.address, self._tell)
            self.plan = self._with_comers(self.plan)
        how = self.how
        while True:
            with PlanningProcess() as planning:
                anew = PlansAnew(planning, questioned=self.replanned)
                prepared = self._prepared()
                speed = 1.0 if how.imitate is None else how.imitate.speed
                try:
                    record, control = train(
                        prepared,
                        how.address,
                        imitate=how.imitate,
                        encrypt=how.encrypt,
                        timeline=how.timeline,
                        limit=self.watched.left_of(how.limit, prepared, speed),
                        left=self.left,
                        anew=anew,
                        observer=self.watched,
                        interrupt=self.interrupt,
                    )
                except NothingToTakeOver as error:
                    self._tell(f"{error}: resuming from the last checkpoint")
                    self.taking = None
                except RavnestError as error:
                    self._begin_again(prepared, error, anew)
                else:
                    return finish(prepared, record, control, encrypted=how.encrypt)
            self.interrupt.gracefully = False

    @property
    def _read_from(self) -> Path:
        return self.plan_path or self.folder.plan

    def _tell(self, said: str) -> None:
        self.watched.on(report.NoticeEvent(said))

    def _prepared(self) -> Prepared:
        """Prepare the next session, and make the run's folder unless it is another driver's session."""
        if self.taking is None:
            self._leave_liars_out()
        prepared = prepare(
            self.plan if self.taking is None else self.taking[1],
            self._read_from,
            self.folder.path,
            resume=self.resume,
            other_data=self.other_data,
            takes_over=None if self.taking is None else self.taking[0],
            observer=self.watched,
        )
        if self.taking is None:
            _begin(prepared, self.plan_path, rehearsal=self.how.imitate is not None, again=self.begun)
        self.nodes.start(self.folder.path)
        return prepared

    def _leave_liars_out(self) -> None:
        """Go on by another plan where this one has nodes that were shut out, which is told."""
        found = plan_without(self.plan, self.left, self.folder.shut_out)
        if found is not self.plan:
            who = ", ".join(sorted(self.left.liars))
            self._tell(f"{who} were shut out ({self.folder.shut_out}): the run goes on by a plan without them")
            self.plan, self.plan_path, self.replanned = found, None, True

    def _begin_again(self, prepared: Prepared, error: RavnestError, plans: PlansAnew) -> None:
        """Let the next session begin again after the loss of all clusters, or for a better plan. Raises the `error`
        with what helps where there is to be none."""
        better = plans.next_plan
        gone = isinstance(error, NodeNotThere) and self.begun  # it was there when the run was planned
        if isinstance(error, TakenOver) or (isinstance(error, InvalidInput | Interrupted) and not gone):
            raise error
        anew, last = None, prepared.plan
        if isinstance(error, NodeLost | NodeNotThere) and not self.interrupt.wanted:
            last = self._with_comers(prepared.plan) if better is None else better
            ends = partial(wants_end, self.interrupt, self.folder.path, self.left)
            run = AllSessions(self.how.address, self.restarts, self.left, self.watched, ends)
            trained, on_purpose = plans.trained or prepared.plan, better is not None
            stage = error.stage if isinstance(error, NodeLost) else ""
            anew = begun_again(run, prepared, last, trained, str(error), stage=stage, on_purpose=on_purpose)
        if anew is None:
            advice = _advice(prepared, self.how.address, encrypt=self.how.encrypt, trained=self.watched.training)
            raise _failure(error, prepared.folder.ray_log, advice) from error
        if better is not None or anew.plan is not last:
            self.plan_path, self.replanned = None, True
        self.plan = anew.plan
        self.resume, self.other_data, self.taking, self.begun = anew.resumes, anew.resumes, None, True

    def _with_comers(self, plan: Plan) -> Plan:
        """The plan with whoever had come to the run, which is told."""
        alive = partial(nodes_alive, address=self.how.address, log=self.folder.ray_log)
        grown = plan_with_comers(self.folder.path, plan, self._read_from, alive)
        if grown is not plan:
            names = [node.name for node in grown.fleet.nodes if node.name not in plan.fleet.names]
            self._tell(f"{', '.join(names)}, which had come to the run, may take part again")
        return grown


def _failure(error: RavnestError, ray_log: Path, advice: str | None) -> RunFailed:
    """The error with what helps: where Ray's own words are, and how to go on."""
    said = f"what Ray said is in {ray_log}" if ray_log.is_file() and ray_log.stat().st_size > 0 else None
    text = "; ".join(filter(None, (clause(str(error)) if said or advice else str(error), said, advice)))
    return type(error)(text) if isinstance(error, NodeLost | NotWritten) else RunFailed(text)


def _write_down(error: BaseException, metrics: Path) -> None:
    """Write down why the run has ended, for whoever looks at its folder. Where the disk refuses that, nobody is told:
    the error itself says more."""
    at_once = isinstance(error, KeyboardInterrupt | Interrupted)
    if isinstance(error, KeyboardInterrupt):
        reason = "stopped at once, by Ctrl-C"
    else:
        reason = str(error) if isinstance(error, RavnestError) else describe(error)
    with suppress(InvalidInput):
        last = last_record(metrics)
        with MetricsWriter(metrics) as writer:
            at_s = 0.0 if last is None else float(str(last["at_s"]))
            writer.write("failed", at_s, **report.as_plain(report.FailedEvent(reason, at_once)))


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
            return state, load_plan_beside(folder.driver)
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


def require_devices(plan: Plan, imitate: Imitation | None, plan_path: Path | None = None) -> None:
    """Raises InvalidInput, which names the node, where a stage of `plan` needs a device that this machine lacks."""
    for cluster in plan.clusters:
        for stage in cluster.stages:
            try:
                require_device(device_of(plan, stage, imitate))
            except RunFailed as error:
                raise InvalidInput(
                    str(error),
                    path=None if plan_path is None else str(plan_path),
                    key=f"nodes.{stage.node}.device",
                    hint="without --address all stages run on this machine: `ravnest rehearse` imitates the nodes on"
                    " its processor, or write device: cpu for that node in nodes.yaml and plan again",
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
    """Passes every event to the observer, and remembers whether `training` has begun, and how far it came.

    Until the loop takes users' requests to end the run, the steps before it do so, as Ctrl-C does: Interrupted.
    """

    def __init__(self, observer: report.Observer, folder: Path) -> None:
        self._observer = observer
        self._folder = folder
        self.training = False
        self._earlier_s = 0.0
        self._this_s = 0.0
        self._samples = 0

    def on(self, event: report.RunEvent) -> None:
        if event == report.PhaseEvent("training"):
            self.training = True
            self._earlier_s, self._this_s = self._earlier_s + self._this_s, 0.0
        elif isinstance(event, report.ProgressEvent):
            self._this_s, self._samples = event.elapsed_s, event.samples
        elif isinstance(event, report.RestartedEvent):
            self._samples = 0
        self._observer.on(event)
        before = isinstance(event, report.PhaseEvent) and event.name in report.PHASES_BEFORE_TRAINING
        if before and take_requests(self._folder, ("stop", "stop_now")):
            raise Interrupted("ended before training, as it was asked to")

    @property
    def trained_s(self) -> float:
        """For how long the run has trained since it last began."""
        return self._this_s

    @property
    def trained_samples(self) -> int:
        """The samples of the fleet by now; 0 where the run has not trained since it last began."""
        return self._samples

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
