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


def join(
    run: Run,
    node: Node,
    nodes: Annotated[
        Path | None,
        typer.Option("--nodes", metavar="NODES_YAML", help="A nodes.yaml with the node, if the run's plan lacks it."),
    ] = None,
) -> None:
    """Let a node take part in a run: one that had left it, or with --nodes one that its plan does not have.

    It becomes a spare. It takes a lost node's place, or a cluster is planned anew with it where that pays.
    """
    from ravnest.machines import join_run

    join_run(run, node, nodes, warn=lambda said: typer.echo(said, err=True))
    typer.echo(f"{node} may take part; the output of the run says when it does")
