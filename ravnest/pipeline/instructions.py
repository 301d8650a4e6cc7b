"""What a stage is told to do: the instructions that `StageMachine.handle` returns, named in the imperative.

They carry numbers and no tensors. Each prints as one short word and parses back, so that a trace is one string and a
test compares strings:

    F12          RunForward            SA12          SendActivation
    B12          RunBackward           SG12@r2|0.5   SendGradient (stamp and norm² only where there is one)
    I12          RunInputGradients     W12           RunWeightGradients
    U3|0.25      RunUpdate (norm²)     SN3|0.25      SendGlobalNorm
    SNAP2        TakeSnapshot          SE1.4/32      SendEvaluation (batch 4 of 32)
    M2           ApplyMerge            CE1.4         CreditEvaluation
    E1.4         RunEvaluation         RE1 RD24/3 RR5   ReportEvaluation, ReportDrained, ReportRoundsFinished
    FAIL"why"    Fail (a JSON string)
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable

from ring_allreduce.ring import record


@record
class RunForward:
    """Compute a forward. The first stage reads its own batch for it; the last stage computes the loss with it."""

    micro_batch: int

    def __str__(self) -> str:
        return f"F{self.micro_batch}"


@record
class RunBackward:
    """Compute a whole backward with the weights that its forward used, and add to the group's gradient."""

    micro_batch: int

    def __str__(self) -> str:
        return f"B{self.micro_batch}"


@record
class RunInputGradients:
    """Compute the first part of a split backward: what is sent back. Its graph is kept for the second part."""

    micro_batch: int

    def __str__(self) -> str:
        return f"I{self.micro_batch}"


@record
class RunWeightGradients:
    """Compute the second part of a split backward, and add to the group's gradient."""

    micro_batch: int

    def __str__(self) -> str:
        return f"W{self.micro_batch}"


@record
class RunUpdate:
    """Compute one optimizer step. `norm_sq` is the global squared norm to clip by; None is not to clip."""

    update: int
    norm_sq: float | None = None

    def __str__(self) -> str:
        return f"U{self.update}{_norm(self.norm_sq)}"


@record
class TakeSnapshot:
    """Compute a snapshot: take the progress since the last snapshot and contribute it to the round."""

    round: int

    def __str__(self) -> str:
        return f"SNAP{self.round}"


@record
class ApplyMerge:
    """Compute a merge: add the round's correction to the weights."""

    round: int

    def __str__(self) -> str:
        return f"M{self.round}"


@record
class RunEvaluation:
    """Compute the forward of a held-out batch, in evaluation mode and without a graph."""

    evaluation: int
    batch: int

    def __str__(self) -> str:
        return f"E{self.evaluation}.{self.batch}"


@record
class SendActivation:
    """Send a forward's output to the next stage."""

    micro_batch: int

    def __str__(self) -> str:
        return f"SA{self.micro_batch}"


@record
class SendGradient:
    """Send a gradient to the previous stage, with the stamp and the norm as in `GradientArrived`."""

    micro_batch: int
    snapshot_round: int | None = None
    norm_sq: float | None = None

    def __str__(self) -> str:
        stamp = "" if self.snapshot_round is None else f"@r{self.snapshot_round}"
        return f"SG{self.micro_batch}{stamp}{_norm(self.norm_sq)}"


@record
class SendGlobalNorm:
    """Send the squared norm of an update over all stages to the next stage."""

    update: int
    norm_sq: float

    def __str__(self) -> str:
        return f"SN{self.update}{_norm(self.norm_sq)}"


@record
class SendEvaluation:
    """Send a held-out batch's output to the next stage."""

    evaluation: int
    batch: int
    batches: int

    def __str__(self) -> str:
        return f"SE{self.evaluation}.{self.batch}/{self.batches}"


@record
class CreditEvaluation:
    """Tell the first stage, as the last one, that a held-out batch is done."""

    evaluation: int
    batch: int

    def __str__(self) -> str:
        return f"CE{self.evaluation}.{self.batch}"


@record
class ReportEvaluation:
    """Tell the driver, as the last stage, that all batches of this evaluation have passed."""

    evaluation: int

    def __str__(self) -> str:
        return f"RE{self.evaluation}"


@record
class ReportDrained:
    """Tell the driver, as the first stage, that the cluster has done exactly these micro-batches and updates."""

    micro_batches: int
    updates: int

    def __str__(self) -> str:
        return f"RD{self.micro_batches}/{self.updates}"


@record
class ReportRoundsFinished:
    """Tell the driver, as any stage, that all rounds up to this one are merged and nothing is in flight."""

    up_to: int

    def __str__(self) -> str:
        return f"RR{self.up_to}"


@record
class Fail:
    """End the run, because an event cannot be. The machine issues nothing after it."""

    reason: str

    def __str__(self) -> str:
        return f"FAIL{json.dumps(self.reason)}"


Pass = RunForward | RunBackward | RunInputGradients | RunWeightGradients
"""A computation on one micro-batch."""

Compute = Pass | RunUpdate | TakeSnapshot | ApplyMerge | RunEvaluation
"""An instruction that takes time on the stage's device. One runs at a time, until its Finished event."""

Send = SendActivation | SendGradient | SendGlobalNorm | SendEvaluation | CreditEvaluation
Report = ReportEvaluation | ReportDrained | ReportRoundsFinished
Instruction = Compute | Send | Report | Fail


def parse(word: str) -> Instruction:
    """Return the instruction that prints as `word`. Raises ValueError when there is none."""
    for pattern, make in _FORMS:
        match = pattern.fullmatch(word)
        if match:
            return make(*match.groups())
    raise ValueError(f"not an instruction: {word!r}")


def parse_trace(trace: str) -> list[Instruction]:
    """Return the instructions of a trace: words parted by white space (a Fail's reason may hold some)."""
    return [parse(word) for word in re.findall(r'FAIL"(?:[^"\\]|\\.)*"|\S+', trace)]


def format_trace(instructions: Iterable[Instruction]) -> str:
    """Return the trace that `parse_trace` reads back."""
    return " ".join(map(str, instructions))


def _norm(norm_sq: float | None) -> str:
    return "" if norm_sq is None else f"|{norm_sq!r}"


def _int(digits: str | None) -> int | None:
    return None if digits is None else int(digits)


def _float(digits: str | None) -> float | None:
    return None if digits is None else float(digits)


_N = r"(\d+)"
_NORM = r"\|([0-9.e+-]+|inf|nan)"
_FORMS: list[tuple[re.Pattern[str], Callable[..., Instruction]]] = [
    (re.compile(f"F{_N}"), lambda m: RunForward(int(m))),
    (re.compile(f"B{_N}"), lambda m: RunBackward(int(m))),
    (re.compile(f"I{_N}"), lambda m: RunInputGradients(int(m))),
    (re.compile(f"W{_N}"), lambda m: RunWeightGradients(int(m))),
    (re.compile(f"U{_N}(?:{_NORM})?"), lambda u, norm: RunUpdate(int(u), _float(norm))),
    (re.compile(f"SNAP{_N}"), lambda r: TakeSnapshot(int(r))),
    (re.compile(f"M{_N}"), lambda r: ApplyMerge(int(r))),
    (re.compile(rf"E{_N}\.{_N}"), lambda e, b: RunEvaluation(int(e), int(b))),
    (re.compile(f"SA{_N}"), lambda m: SendActivation(int(m))),
    (
        re.compile(f"SG{_N}(?:@r{_N})?(?:{_NORM})?"),
        lambda m, r, norm: SendGradient(int(m), _int(r), _float(norm)),
    ),
    (re.compile(f"SN{_N}{_NORM}"), lambda u, norm: SendGlobalNorm(int(u), float(norm))),
    (re.compile(rf"SE{_N}\.{_N}/{_N}"), lambda e, b, n: SendEvaluation(int(e), int(b), int(n))),
    (re.compile(rf"CE{_N}\.{_N}"), lambda e, b: CreditEvaluation(int(e), int(b))),
    (re.compile(f"RE{_N}"), lambda e: ReportEvaluation(int(e))),
    (re.compile(f"RD{_N}/{_N}"), lambda m, u: ReportDrained(int(m), int(u))),
    (re.compile(f"RR{_N}"), lambda r: ReportRoundsFinished(int(r))),
    (re.compile(r'FAIL("(?:[^"\\]|\\.)*")'), lambda text: Fail(json.loads(text))),
]
