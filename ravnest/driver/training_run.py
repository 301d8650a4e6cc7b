"""`run`: from a plan to trained weights. The story of a run; each chapter lives in a module of its own."""

import shlex
from pathlib import Path

from cluster_planner import Plan
from ravnest.driver.imitation import Imitation
from ravnest.driver.initial_state import ResumedRun
from ravnest.driver.observe import report
from ravnest.driver.outcome import finish
from ravnest.driver.preparation import Prepared, prepare
from ravnest.driver.ray.session import check_address
from ravnest.driver.session import StopOnInterrupt, train
from ravnest.errors import Interrupted, InvalidInput, RavnestError, RunFailed


def run(
    plan: Plan,
    plan_path: Path,
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

    `plan_path`: where the plan was read; a copy goes into the run's folder. `address`: a running Ray cluster; None
    starts one on this machine and places every stage on it. `imitate`: what of the plan's machines is imitated;
    None: nothing. `encrypt`: with keys made for this run; tensors travel encrypted, among its own processes alone.
    `timeline`: write trace.json. `limit`: an earlier end than the job's own. Raises InvalidInput, RunFailed, NodeLost
    or Interrupted.
    """
    with StopOnInterrupt() as interrupt:
        if address is not None:
            check_address(address)
        prepared = prepare(plan, plan_path, out_dir, resume=resume, observer=observer)
        prepared.folder.begin(plan_path)
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


class _Watched:
    """Tells the observer all, and remembers whether `training` has begun."""

    def __init__(self, observer: report.Observer) -> None:
        self._observer = observer
        self.training = False

    def on(self, event: report.RunEvent) -> None:
        self.training = self.training or event == report.PhaseEvent("training")
        self._observer.on(event)


def _advice(prepared: Prepared, address: str | None, *, encrypt: bool, trained: bool) -> str | None:
    """How to go on after a failure: only from a checkpoint that a resume would take. None where nothing is lost."""
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
