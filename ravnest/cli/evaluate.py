"""`ravnest evaluate`: computes the loss and the metrics of a run's weights on the held-out or the training set.

In: the command's options. Out: the steps as they begin, then the figures, or with --json the result as one document.
Everything else is `ravnest.evaluate`.
"""

from __future__ import annotations

import json
import sys
from contextlib import nullcontext, redirect_stdout
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from ravnest.cli.runs import Run
from ravnest.cli.steer import evaluate_live
from ravnest.errors import InvalidInput

_LIVE_WAIT_S = 600.0


class Data(StrEnum):
    """The two datasets of a job."""

    held_out = "held_out"
    train = "train"


def evaluate(
    run: Run,
    weights: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH",
            help="Other weights of the same model: a .safetensors file, a checkpoint, a Hugging Face folder; "
            "without it, the run's last.",
        ),
    ] = None,
    data: Annotated[Data, typer.Option(help="Which part of the job's data.")] = Data.held_out,
    samples: Annotated[
        int | None, typer.Option(help="Only about so many samples, as whole batches from all over the data.")
    ] = None,
    job: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH",
            help="Another job.yaml of the same model: one that has moved, or with other data or metrics.",
        ),
    ] = None,
    device: Annotated[
        str | None, typer.Option(metavar="DEVICE", help="Where to compute: cpu, cuda, cuda:1 …; without it, cpu.")
    ] = None,
    live: Annotated[
        bool, typer.Option("--live", help="Let a run that goes on evaluate the held-out set now, on its own machines.")
    ] = False,
    wait: Annotated[
        float | None,
        typer.Option(
            "--wait",
            metavar="SECONDS",
            min=0,
            help="With --live: wait so long for the figures; 600 without it.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as one JSON document.")] = False,
) -> None:
    """Evaluate a run's weights on this machine: the loss, the job's metrics, and the baselines beside.

    The model is run in spans, one after another, so this machine need not be able to hold all of it. Ctrl-C ends it
    with the figures so far.
    """
    if live:
        if data is not Data.held_out:
            raise InvalidInput("a run that goes on evaluates its own held-out set", key="--data")
        others = {"--weights": weights, "--samples": samples, "--job": job, "--device": device}
        refused = next((name for name, given in others.items() if given is not None), None)
        if refused is not None:
            raise InvalidInput("a run that goes on evaluates its own held-out set, where it trains", key=refused)
        evaluate_live(run, _LIVE_WAIT_S if wait is None else wait, as_json=as_json)
        return
    if wait is not None:
        raise InvalidInput("is for --live: this machine evaluates at once", key="--wait")
    import ravnest
    from ravnest.cli.views.steps import Steps
    from ravnest.cli.views.tables import console
    from ravnest.driver.signals import StopOnInterrupt

    steps = Steps(console(stderr=True, quiet=as_json))
    # The job's own code may print: with --json, stdout holds the result alone.
    with steps, redirect_stdout(sys.stderr) if as_json else nullcontext(), StopOnInterrupt() as interrupt:

        def done(part: float) -> None:
            interrupt.gracefully = True  # from now on there are figures to show
            steps.done(part)

        result = ravnest.evaluate(
            run,
            weights=weights,
            data=data.value,
            samples=samples,
            device=device or "cpu",
            job=job,
            step=steps.begin,
            progress=done,
            stop=lambda: interrupt.wanted,
        )
    if as_json:
        from dataclasses import asdict

        from ravnest.formatting import json_value

        json.dump(json_value(asdict(result)), sys.stdout, indent=2, allow_nan=False)
        sys.stdout.write("\n")
    else:
        from ravnest.cli.views.result import show_evaluation

        show_evaluation(result, console(soft_wrap=True))
    if result.stopped_early:
        raise typer.Exit(ravnest.Interrupted.exit_code)
