"""`ravnest export`: writes a run's metrics and weights for other programs.

In: the command's options. Out: the steps as they begin, then a line for each file. Everything else is `ravnest.export`.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from ravnest.cli.runs import Run


class DType(StrEnum):
    """The precisions in which weights can be written."""

    float32 = "float32"
    bfloat16 = "bfloat16"
    float16 = "float16"


def export(
    run: Run,
    weights: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the weights here under the model's own names: a .safetensors file."),
    ] = None,
    huggingface: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Write config.json and model.safetensors here, for transformers' from_pretrained."
        ),
    ] = None,
    tensorboard: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Write the metrics here as TensorBoard event files, in place of older ones."),
    ] = None,
    dtype: Annotated[DType | None, typer.Option(help="The weights' precision; without it, the model's own.")] = None,
    part_gb: Annotated[
        float, typer.Option(min=0.0, metavar="GB", help="Weights beyond this are written in several files.")
    ] = 5.0,
    job: Annotated[
        Path | None, typer.Option(metavar="PATH", help="Where job.yaml lies now, if it has moved since the run.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace weights that are there.")] = False,
) -> None:
    """Write a run's weights as safetensors, or as a Hugging Face folder; its metrics for TensorBoard.

    The run may still be going on: its last checkpoint is taken.
    """
    import ravnest
    from ravnest.cli.views.steps import Steps
    from ravnest.cli.views.tables import console

    with Steps(console(stderr=True)) as steps:
        exported = ravnest.export(
            run,
            weights=weights,
            huggingface=huggingface,
            tensorboard=tensorboard,
            dtype=None if dtype is None else dtype.value,
            part_gb=part_gb,
            job=job,
            force=force,
            step=steps.begin,
            progress=steps.done,
        )
    if exported.points is not None:
        typer.echo(f"Wrote {exported.points:,} points. Next: tensorboard --logdir {tensorboard}")
    for path in exported.files:
        typer.echo(f"Wrote {path}")
