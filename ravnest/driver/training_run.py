"""One run, from a plan to trained weights.

In: a plan, a folder to write to, and an observer. Out: a `RunResult`, or the error that ended the run, with advice how
to go on. The three steps stand in preparation.py, session.py and outcome.py.
"""

import shlex
import tempfile
from pathlib import Path

from cluster_planner import Plan, save_plan
from ravnest.checkpoints.run_folder import choose_folder
from ravnest.driver.imitation import Imitation
from ravnest.driver.observe import report
from ravnest.driver.outcome import finish
from ravnest.driver.preparation import Prepared, ResumedRun, prepare
from ravnest.driver.ray.session import check_address
from ravnest.driver.session import StopOnInterrupt, train
from ravnest.errors import Interrupted, InvalidInput, RavnestError, RunFailed


def run(
    plan: Plan,
    plan_path: Path | None = None,
    *,
    address: str | None = None,
    resume: bool = False,
    out_dir: Path | None = None,
    observer: report.Observer,
    imitate: Imitation | None = None,
    encrypt: bool = False,
    timeline: bool = False,
    limit: report.RunLimit = report.NO_LIMIT,
) -> report.RunResult:
    """Train as the plan says and return what came of it.

    In the main thread, Ctrl-C and SIGTERM end the run with a checkpoint (see `StopOnInterrupt`). In another thread no
    handlers are set, because Python does not allow it.

    Arguments:
        plan_path: the file that the plan was read from, which is copied into the run's folder; None for a plan that was
            made in Python, which is written there.
        address: HOST:PORT of a running Ray cluster; None starts one on this machine and places every stage on it.
        resume: go on from the last checkpoint in the run's folder.
        out_dir: the run's folder; None makes a new one in runs/, or takes the newest there for a resume.
        observer: is told of each event.
        imitate: which of the plan's machines are imitated, and how fast; None imitates nothing.
        encrypt: tensors travel encrypted, with keys of this run and among its own processes alone.
        timeline: write trace.json.
        limit: an earlier end than the job's own.

    Raises:
        InvalidInput, RunFailed, NodeLost or Interrupted.
    """
    with StopOnInterrupt() as interrupt:
        if address is not None:
            check_address(address)
        folder = choose_folder(out_dir, resume=resume)
        prepared = prepare(plan, plan_path or folder.plan, folder.path, resume=resume, observer=observer)
        _begin(prepared, plan_path)
        watched = _Watched(observer)
        try:
            record, control = train(
                prepared,
                address,
                imitate=imitate,
                encrypt=encrypt,
                timeline=timeline,
                limit=limit,
                observer=watched,
                interrupt=interrupt,
            )
        except (InvalidInput, Interrupted):
            raise
        except RavnestError as error:
            kind = type(error) if isinstance(error, RunFailed) else RunFailed
            advice = _advice(prepared, address, encrypt=encrypt, trained=watched.training)
            raise kind("; ".join(filter(None, (str(error), advice)))) from error
        return finish(prepared, record, control, encrypted=encrypt)


def _begin(prepared: Prepared, plan_path: Path | None) -> None:
    """Make the run's folder and write the plan into it."""
    if plan_path is not None:
        prepared.folder.begin(plan_path)
        return
    with tempfile.TemporaryDirectory(prefix="ravnest-plan-") as folder:
        written = Path(folder) / "plan.yaml"
        save_plan(prepared.plan, written)
        prepared.folder.begin(written)


class _Watched:
    """Passes every event to the observer, and remembers whether `training` has begun."""

    def __init__(self, observer: report.Observer) -> None:
        self._observer = observer
        self.training = False

    def on(self, event: report.RunEvent) -> None:
        self.training = self.training or event == report.PhaseEvent("training")
        self._observer.on(event)


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
    command += ["--encrypt"] if encrypt else []
    return f"go on from {checkpoint.folder.name} with: {shlex.join(command)}"
