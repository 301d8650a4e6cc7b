"""Reads the plan of a command, and says where what it predicts is no longer true of it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from cluster_planner.plan import Plan


def read_plan(path: Path) -> tuple[Plan, Plan]:
    """(the plan as its file has it, the same with what it predicts as it stands). Where these differ, standard error
    has a line.
    """
    from cluster_planner.advice.plan_warnings import outdated, predicted_again
    from cluster_planner.files.yaml_files import load_plan

    plan = load_plan(path)
    again = predicted_again(plan)
    if (said := outdated(plan, again)) is not None:
        typer.echo(f"note: {path}: {said}", err=True)
    return plan, again
