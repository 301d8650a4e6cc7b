"""What each step has come to, as a line of curve.jsonl and a line for whoever watches.

In: what volunteers say of their losses, and the steps that are committed. Out: entries with bounded numbers, however
much anybody says.
"""

import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class StepEntry:
    """One step. `line` is for people, `fields` for curve.jsonl."""

    fields: Mapping[str, object]
    line: str


def samples_by(step: int, lines: Sequence[bytes], target_batch: int) -> int:
    """The samples of the first `step` steps, as the lines of a curve.jsonl say. If a step was made again, its last line
    counts; steps that no line is of have a target batch each, and what is no line of a curve says nothing.
    """
    known = samples = 0
    for line in reversed(lines):
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError):  # half a line, of a machine that lost its power
            continue
        match entry:
            case {"step": int(at), "samples_in_all": int(in_all)} if known < at <= step and in_all >= 0:
                known, samples = at, in_all
        if known == step:
            break
    return samples + (step - known) * target_batch


def last_step_line(lines: Sequence[bytes]) -> bytes:
    """The last line of a curve.jsonl that says the samples of a step, with its end; empty where there is none."""
    return next((line + b"\n" for line in reversed(lines) if b'"samples_in_all"' in line), b"")


class Curve:
    """The steps of one collaboration. Losses are what volunteers say of themselves, weighted by samples."""

    def __init__(self, samples: int, began_s: float) -> None:
        """`samples`: of all steps that were made before."""
        self._samples = samples
        self._began_s = began_s
        self._losses: dict[int, tuple[float, int]] = {}  # by step: the sum over samples, and their number

    def begin(self, samples: int, now_s: float) -> None:
        """Another step begins, after so many samples, of which others have made the last ones."""
        self._samples, self._began_s = samples, now_s
        self._losses = {}

    def heard(self, step: int, loss: float, samples: int) -> None:
        """A volunteer has a mean loss over so many samples of the step before which so many were made."""
        total, counted = self._losses.get(step, (0.0, 0))
        self._losses[step] = total + loss * samples, counted + samples

    def committed(self, step: int, by_peer: Mapping[str, int], norm: float, now_s: float) -> StepEntry:
        """The entry of a step that has just been made: the `step`th, of so many samples by peer."""
        samples = sum(by_peer.values())
        self._samples += samples
        total, counted = self._losses.get(step - 1, (0.0, 0))
        loss = total / counted if counted else None
        seconds = now_s - self._began_s
        self._losses = {later: heard for later, heard in self._losses.items() if later >= step}
        self._began_s = now_s
        fields = {
            "step": step,
            "time_s": time.time(),
            "seconds": seconds,
            "samples": samples,
            "samples_in_all": self._samples,
            "peers": len(by_peer),
            "loss": loss,
            "gradient_norm": norm if math.isfinite(norm) else None,
        }
        shown = "" if loss is None else f", loss {loss:.4f}"
        peers = "1 volunteer" if len(by_peer) == 1 else f"{len(by_peer)} volunteers"
        line = f"step {step}: {samples:,} samples of {peers}{shown}, {seconds:.1f} s"
        return StepEntry(fields, line)
