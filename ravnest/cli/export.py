"""`ravnest export`: a run's metrics and weights for other programs.

Decides the command's options. What becomes a curve is ravnest.results.tensorboard's, what is written of the weights
ravnest.results.export's.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from ravnest.results.export import ExportTarget
    from ravnest.training.precision import Precision


class DType(StrEnum):
    """What weights can be written as."""

    float32 = "float32"
    bfloat16 = "bfloat16"
    float16 = "float16"


def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The run's folder, such as runs/20260131-120000.")],
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
    import math

    from ravnest.errors import InvalidInput

    if weights is None and huggingface is None:
        if tensorboard is None:
            raise InvalidInput(
                "name what to export: --weights FILE, --huggingface DIR or --tensorboard DIR", key="export"
            )
        if dtype is not None or force:
            raise InvalidInput("is about weights: name where with --weights or --huggingface", key="--dtype, --force")
    if weights is not None and (weights.suffix != ".safetensors" or weights.is_dir()):
        raise InvalidInput("expected the name of a .safetensors file", path=str(weights), key="--weights")
    if not math.isfinite(part_gb):
        raise InvalidInput(f"must be a finite number, 0 or more, not {part_gb:g}", key="--part-gb")
    if tensorboard is not None:
        from ravnest.results.tensorboard import to_tensorboard

        count = to_tensorboard(run, tensorboard)
        typer.echo(f"Wrote {count:,} points. Next: tensorboard --logdir {tensorboard}")
    if weights is not None or huggingface is not None:
        from ravnest.results.export import ExportTarget

        part_bytes = int(part_gb * 1e9)
        plain = None if weights is None else ExportTarget(weights.parent, weights.stem, "--weights", force, part_bytes)
        folder = None if huggingface is None else ExportTarget(huggingface, "model", "--huggingface", force, part_bytes)
        _export_weights(run, job, plain, folder, dtype)


def _export_weights(
    run: Path, job: Path | None, plain: ExportTarget | None, folder: ExportTarget | None, dtype: DType | None
) -> None:
    from rich.console import Console

    from ravnest.checkpoints.weight_files import open_weights
    from ravnest.cli.views.steps import Steps
    from ravnest.results.export import save_huggingface, save_weights
    from ravnest.results.trained_run import open_run, weights_of_run

    opened = open_run(run, job)
    files = open_weights(weights_of_run(opened))
    written: list[Path] = []
    precision: Precision | None = None if dtype is None else dtype.value
    with Steps(Console(stderr=True)) as steps:
        for place, save in ((plain, save_weights), (folder, save_huggingface)):
            if place is not None:
                steps.begin(f"writing the weights to {place.folder / place.stem}.safetensors")
                written += save(opened, files, place, precision, lambda part: steps.say(f"{part:.0%}"))
    for path in written:
        typer.echo(f"Wrote {path}")
