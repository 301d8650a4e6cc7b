"""`ravnest leave` and `ravnest join`: a node of a run that goes on leaves it with notice, or is back.

In: the run's folder and a node's name. Out: a request in the folder, which the run takes within a second and answers in
its own output.
"""

from pathlib import Path
from typing import Annotated

import typer

Run = Annotated[Path, typer.Argument(metavar="RUN", help="The run's folder, on the machine of `ravnest run`.")]
Node = Annotated[str, typer.Argument(metavar="NODE", help="A node's name in nodes.yaml.")]


def leave(run: Run, node: Node) -> None:
    """Let a node leave a run with nothing lost: its cluster hands on what it has made.

    A spare of the plan takes its place where one can; else the cluster waits until the node has joined again.
    """
    from ravnest.machines import leave_run

    leave_run(run, node)
    typer.echo(f"{node} is asked to leave; the output of the run says when it has left")


def join(run: Run, node: Node) -> None:
    """Let a node of the plan that had left a run take part in it again."""
    from ravnest.machines import join_run

    join_run(run, node)
    typer.echo(f"{node} may take part again; the output of the run says when its cluster trains")
