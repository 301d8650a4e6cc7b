"""The files that a user writes and reads: nodes.yaml, job.yaml and plan.yaml.

In: paths, and the objects that the files describe. Out: checked objects, and files that are written in one step. A
function imports what it needs when it is called, so that a mistake in a file is told before torch is loaded.

Everything raises InvalidInput with the file and the key where a file is missing or wrong.
"""

from __future__ import annotations

import os
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cluster_planner import Fleet, Plan
    from ravnest.job.config import Job

StrPath = str | os.PathLike[str]
"""The path of a file."""

Tell = Callable[[str], None]
"""A function that takes one line of text."""


def load_fleet(path: StrPath, *, warn: Tell | None = None) -> Fleet:
    """Reads the fleet of a nodes.yaml: machines, links, regions and constraints.

    `warn` is told, in a line each, what is possible but probably not meant; without it, such lines become Python
    warnings. Raises InvalidInput with the file and the key.
    """
    from cluster_planner import load_fleet

    return load_fleet(path, lambda said: told_to(warn)(f"{path}: {said}"))


def save_fleet(fleet: Fleet, path: StrPath) -> None:
    """Writes nodes.yaml in one step: a reader finds the old file or the whole new one."""
    from cluster_planner import save_fleet

    save_fleet(fleet, path)


def load_job(path: StrPath) -> Job:
    """Reads the job of a job.yaml. Raises InvalidInput with a line for each mistake."""
    from ravnest.job.config import load_job

    return load_job(path)


def load_plan(path: StrPath) -> Plan:
    """Reads a plan.yaml and checks it as a whole, since it may have been edited. Raises InvalidInput."""
    from cluster_planner import load_plan
    from ravnest.errors import InvalidInput

    try:
        return load_plan(path)
    except InvalidInput as error:
        if Path(path).exists():
            raise
        hint = "`ravnest plan NODES_YAML` makes a plan"
        raise InvalidInput(error.message, path=error.path, key=error.key, hint=hint) from None


def save_plan(plan: Plan, path: StrPath) -> None:
    """Writes plan.yaml in one step. The file is complete: it holds the job, the fleet and the model's costs."""
    from cluster_planner import save_plan

    save_plan(plan, path)


def require_writable(path: Path, key: str) -> None:
    """Raises InvalidInput where no file can be made at `path`, which `key` names: asked before the work of minutes
    whose result is to lie there. Nothing is left of the try."""
    from ravnest.errors import InvalidInput

    there = next(folder for folder in path.absolute().parents if folder.exists())
    try:
        with tempfile.TemporaryFile(dir=there):
            pass
    except OSError as error:
        raise InvalidInput(f"cannot be written ({error.strerror or error})", path=str(path), key=key) from None


def read_plan(path: StrPath, warn: Tell | None = None) -> tuple[Plan, Plan]:
    """Reads a plan.yaml: the plan as the file has it, and the same plan with predictions made anew.

    The two differ where somebody has edited the file, or another version has written it; `warn` is told then.
    """
    from cluster_planner import outdated, predicted_again

    plan = load_plan(path)
    again = predicted_again(plan)
    if (said := outdated(plan, again)) is not None:
        told_to(warn)(f"{path}: {said}")
    return plan, again


def fleet_of(given: Fleet | StrPath, warn: Tell | None) -> tuple[Fleet, Path | None]:
    """Returns the fleet, and the file that it was read from; None where it was given as an object."""
    from cluster_planner import Fleet

    if isinstance(given, str | os.PathLike):
        return load_fleet(given, warn=warn), Path(given)
    _refuse_unless(given, Fleet, "fleet", "nodes.yaml")
    return given, None


def plan_of(given: Plan | StrPath, warn: Tell | None) -> tuple[Plan, Path | None]:
    """Returns the plan, and the file that it was read from; None where it was given as an object.

    Raises InvalidInput where the plan cannot run, as of the file.
    """
    from cluster_planner import Plan, require_memory, validate

    if isinstance(given, str | os.PathLike):
        return read_plan(given, warn)[0], Path(given)
    _refuse_unless(given, Plan, "plan", "plan.yaml")
    validate(given)
    require_memory(given)
    return given, None


def job_for(fleet_path: Path | None, job: Job | StrPath | None) -> Job:
    """Returns the job to plan for.

    `job` is the job itself or the path of its job.yaml. Without it, the job is read from job.yaml beside `fleet_path`,
    the file that the fleet was read from. Raises InvalidInput where neither is given or no such file exists.
    """
    from ravnest.errors import InvalidInput

    if job is None and fleet_path is None:
        raise InvalidInput("is missing", key="job", hint="give a Job, or the path of a job.yaml")
    if job is None and fleet_path is not None:
        job = fleet_path.parent / "job.yaml"
        if not job.exists():
            hint = "write the job there, or name another one with job (--job on the command line)"
            raise InvalidInput("no such file", path=str(job), hint=hint)
    if isinstance(job, str | os.PathLike):
        return load_job(job)
    from ravnest.job.config import Job

    assert job is not None
    _refuse_unless(job, Job, "job", "job.yaml")
    return job


def _refuse_unless(given: object, kind: type, key: str, file: str) -> None:
    from ravnest.errors import InvalidInput

    if not isinstance(given, kind):
        found = type(given).__name__
        raise InvalidInput(
            f"expected a {kind.__name__} or the path of a {file}, not an object of type {found}", key=key
        )


def told_to(warn: Tell | None) -> Tell:
    """`warn` itself, or without it a function that makes a Python warning of each line."""
    return warn if warn is not None else lambda said: warnings.warn(said, stacklevel=4)


def ignore(said: object) -> None:
    """Ignores what is told: the progress of a call whose caller does not ask for it."""
