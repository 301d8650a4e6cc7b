"""`ravnest leave` and `ravnest join`: a node of a run that goes on leaves it with notice, or is back.

In: the run's folder and a node's name. Out: a request in the folder, which the run takes within a second and answers in
its own output.
"""

from pathlib import Path
from typing import Annotated

import typer

from ravnest.cli.runs import Run
from ravnest.errors import InvalidInput

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
    node: Annotated[str | None, typer.Argument(metavar="NODE", help="The node's name.", show_default=False)] = None,
    nodes: Annotated[
        Path | None,
        typer.Option("--nodes", metavar="NODES_YAML", help="A nodes.yaml with the node, if the run's plan lacks it."),
    ] = None,
    address: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Instead of a node: measure each that appears in this Ray cluster."),
    ] = None,
) -> None:
    """Let a node take part in a run: one that had left it, or with --nodes one that its plan does not have.

    It becomes a spare. It takes a lost node's place, or a cluster is planned anew with it where that pays. With
    --address nodes are measured and join as they appear in a Ray cluster, until the run is over; a run with --address
    does that by itself.
    """
    from ravnest.machines import join_appearing, join_run

    if (node is None) == (address is None):
        raise InvalidInput("name a node, or with --address a Ray cluster whose new nodes join", key="NODE")
    if address is not None:
        join_appearing(run, address, typer.echo)
    elif node is not None:
        join_run(run, node, nodes, warn=lambda said: typer.echo(said, err=True))
        typer.echo(f"{node} may take part; the output of the run says when it does")
