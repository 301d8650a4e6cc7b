"""`ravnest export`: a run's metrics for other programs.

Decides the command's options. What becomes a curve is ravnest.launch.export's.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The run's folder, such as runs/20260131-120000.")],
    tensorboard: Annotated[
        Path,
        typer.Option(
            "--tensorboard", metavar="DIR", help="Write TensorBoard event files here, in place of older ones."
        ),
    ],
) -> None:
    """Write a run's metrics for TensorBoard: losses, learning rates, staleness, rates, where the time went, memory.

    The run may still be going on: export it again for more.
    """
    from ravnest.launch.export import to_tensorboard

    count = to_tensorboard(run, tensorboard)
    typer.echo(f"Wrote {count:,} points. Next: tensorboard --logdir {tensorboard}")
