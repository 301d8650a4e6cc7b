"""What a backbone knows of the training: model and optimizer, the curve, the people, and all of it on the disk.

In: averages of steps, in their order, and what volunteers say of their losses. Out: the state of a step for those who
join, evaluations, and the files of backbone_store.py. Nobody's connection is known here. A machine that stands by has
the same, from the state and the averages that the serving one sends it, and that one's lines of the curve.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from ravnest.collaboration.backbone_store import BackboneStore
from ravnest.collaboration.code_bundle import code_hash, collected
from ravnest.collaboration.curve import Curve, last_step_line, samples_by
from ravnest.collaboration.evaluations import Evaluations, Found
from ravnest.collaboration.invitation import Invitation
from ravnest.collaboration.messages import (
    CODE_BYTES,
    PROTOCOL,
    ChallengeMessage,
    CodeMessage,
    LedgerMessage,
    WelcomeMessage,
)
from ravnest.collaboration.people import FILE, parsed_people, read_people
from ravnest.collaboration.signatures import read_signatures
from ravnest.collaboration.trainer import Trainer
from ravnest.collaboration.transfers import Form
from ravnest.errors import InvalidInput
from ravnest.job.config import Job
from ring_allreduce.transport import Message


@dataclass(frozen=True)
class BackboneResult:
    """What a collaboration has come to."""

    steps: int
    weights: Path | None
    """None where it was stopped before its end."""
    weights_hash: str
    """Of the weights in memory: every volunteer that has applied all averages has the same."""
    stepped_down: bool = False
    """Another backbone machine serves, and is further."""


PEOPLE_S = 1.0
"""Machines that stand by hear of the people at most so often, and with each state that is saved."""


def ledger_message(entry: bytes, people: bytes) -> LedgerMessage:
    """What other backbone machines keep beside the averages. Too many people to send are left out."""
    return LedgerMessage(entry=entry, people=people if len(people) <= CODE_BYTES else b"")


class BackboneState:
    """The state of one backbone. It belongs to one thread."""

    def __init__(
        self,
        job: Job,
        job_file: Path,
        folder: Path,
        *,
        resume: bool,
        tell: Callable[[str], None],
        now: Callable[[], float],
        evaluations: Evaluations | None = None,
    ) -> None:
        """`resume`: go on from the last state in `folder`. `evaluations`: has the held-out set evaluated; None: beside
        all else. Raises InvalidInput."""
        if folder.resolve() == job_file.resolve().parent:
            raise InvalidInput("is the job's folder, which volunteers are sent", path=str(folder), key="--out")
        self.files = collected(job_file)
        self.code, self.job_name = code_hash(self.files), job_file.name
        self.trainer = Trainer(job, job_file)
        self.store = BackboneStore(folder, resume=resume)
        self.people = read_people(folder)
        self.signatures = read_signatures(folder, self.code)
        self._tell, self._now = tell, now
        self._lines = b""  # since ledger()
        self._before_state = b""
        self._told_people_s = -math.inf
        self.term = self.store.read_term()
        """Rises by one when another machine takes over."""
        self.holds_state = not resume or self.store.begun
        """A machine that was only given keys has no state of the collaboration yet."""
        if resume:
            self._take_up()
            before = self.store.last_invitation()
            if before is not None and before.code_hash != self.code:
                tell("the job's folder has changed since the last start: volunteers need the new invitation")
        else:
            self.save()  # whatever ends this start, the next one has something to go on from
        self._curve = Curve(self._samples(), now())
        self.last_line = last_step_line(self.store.curve_lines())
        """The line of the last step: who begins to follow counts the samples from there on."""
        self._every = max(1, job.evaluate_every // self.trainer.target_batch)
        self._evaluated = 0
        self._evaluations = evaluations or Evaluations()
        self._joiners: tuple[int, list[tuple[Form, Tensor]]] | None = None
        self.most_samples = self.trainer.target_batch + job.micro_batch - 1
        """Of one contribution: a volunteer stops at a whole batch, and its last micro-batch may go beyond it."""

    def serves(self) -> None:
        """This machine begins to serve: its curve goes on from the last line, which may be another machine's."""
        self._curve.begin(self._samples(), self._now())

    def _samples(self) -> int:
        """Of all steps that were made."""
        return samples_by(self.trainer.step, self.store.curve_lines(), self.trainer.target_batch)

    def challenge(self, nonce: bytes) -> ChallengeMessage:
        """The first word on a line."""
        return ChallengeMessage(protocol=PROTOCOL, nonce=nonce, term=self.term, step=self.trainer.step)

    def welcome(self, visit: int) -> list[Message]:
        """The code, and what is said after it to a volunteer on its visit of that number."""
        code: list[Message] = [CodeMessage(path=path, data=data) for path, data in self.files.items()]
        said = WelcomeMessage(files=len(code), job=self.job_name, session=visit, signatures=self.signatures)
        return [*code, said]

    def of_joiners(self) -> tuple[int, list[tuple[Form, Tensor]]]:
        """The step, and the state as copies that all who join at that step share."""
        if self._joiners is None or self._joiners[0] != self.trainer.step:
            self._joiners = self.trainer.step, self.trainer.state()
        return self._joiners

    def heard(self, step: int, loss: float, samples: int) -> None:
        """A volunteer has a mean loss over so many samples of a step."""
        if self.trainer.step <= step <= self.trainer.step + self.trainer.job.delayed_step:
            self._curve.heard(step, loss, min(samples, self.most_samples))

    @property
    def standing(self) -> tuple[int, int]:
        """(term, step): of two machines that serve, the greater one's counts."""
        return self.term, self.trainer.step

    def begin_term(self, term: int) -> None:
        """Count from this term on, and write it down first."""
        if term != self.term:
            self.store.save_term(term)
            self.term = term

    def take_state(self, vectors: Mapping[str, Tensor], step: int) -> None:
        """Hold the state of another machine, which serves."""
        self.trainer.load(vectors, step)
        self._joiners = None
        self.holds_state = True
        self.store.remove_states_after(step)
        self.save()
        entry, self._before_state = self._before_state, b""
        self.take_ledger(entry, b"")

    def follow(self, mean: Mapping[str, Tensor]) -> None:
        """Make a step that another machine has committed."""
        self.trainer.apply(mean)
        if self.trainer.step % self._every == 0:
            self.save()

    def take_ledger(self, entry: bytes, people: bytes) -> None:
        """Keep the curve and the people of the machine that serves. Raises InvalidInput for what is neither."""
        if entry:
            if not entry.endswith(b"\n") or any(not line.startswith(b"{") for line in entry.splitlines()):
                raise InvalidInput("the other backbone sent what is no line of a curve")
            if not self.holds_state:  # a curve without a state would look like one that begins
                self._before_state += entry
            elif entry != self.last_line:  # who follows again is told it again
                self.store.add_lines_to_curve(entry)
                self.last_line = last_step_line(entry.splitlines()) or self.last_line
        if people:
            self.people = parsed_people(people, self.store.folder / FILE)
            if self.trainer.step % self._every == 0:  # with the state to which they belong
                self.store.save_people(self.people)

    def ledger(self) -> tuple[bytes, bytes]:
        """The lines of the curve since this was last asked for, and the people unless they were told a moment ago."""
        (lines, self._lines), people, now_s = (self._lines, b""), b"", self._now()
        if now_s >= self._told_people_s + PEOPLE_S:
            self._told_people_s, people = now_s, self.people.text().encode()
        return lines, people

    def invitation(self, addresses: tuple[str, ...]) -> Invitation:
        """The invitation to this collaboration, whose backbones are found at these addresses."""
        kept = self.store.secrets
        return Invitation(addresses, kept.backbone_public, kept.guest_public, kept.guest_secret, kept.token, self.code)

    def apply(self, samples: Mapping[str, int], mean: Mapping[str, Tensor]) -> None:
        """Make a step of its mean over so many samples by peer; save and begin to evaluate when that is due."""
        norm = self.trainer.apply(mean)
        entry = self._curve.committed(self.trainer.step, samples, norm, self._now())
        self.last_line = self.store.add_to_curve(entry.fields)
        self._lines += self.last_line
        self._tell(entry.line)
        if self.trainer.step % self._every == 0:
            self.save()
            self._begin_evaluation()

    def _begin_evaluation(self) -> None:
        """Evaluate what the model is now, beside the steps that follow."""
        if self._evaluations.hangs:
            return
        if (under_way := self._evaluations.under_way) is not None:
            if self.trainer.step != self.trainer.total_steps:  # the last one is evaluated at the end
                self._tell(f"step {self.trainer.step} is not evaluated: step {under_way} still is (evaluate_every)")
            return
        try:
            work = self.trainer.evaluation()
        except (TypeError, RuntimeError) as error:  # of the model's own code, or of a full memory
            why = " ".join(str(error).split())
            self._tell(f"steps wait while step {self.trainer.step} is evaluated: the model cannot be copied ({why})")
            self.evaluate()
            return
        self._evaluated = self.trainer.step
        self._evaluations.begin(self._evaluated, work)
        self.look_at_evaluation()

    def look_at_evaluation(self) -> None:
        """Write an evaluation to the curve once it is there. One that hangs is the last one."""
        if (finished := self._evaluations.finished()) is not None:
            self._write_evaluation(*finished)
        if (step := self._evaluations.give_up()) is not None:
            self._tell(f"the evaluation of step {step} hangs: it has done no batch for long, and no step is evaluated")

    def evaluate(self, stop: Callable[[], bool] = lambda: False) -> None:
        """Have the held-out set evaluated on the last step, once, and wait for it, unless `stop` says so."""
        self._evaluations.wait(stop)
        self.look_at_evaluation()
        if self._evaluated < self.trainer.step and not self._evaluations.hangs and not stop():
            self._evaluated = self.trainer.step
            self._evaluations.begin(self._evaluated, self.trainer.evaluate)
            self._evaluations.wait(stop)
            self.look_at_evaluation()

    def stop_evaluation(self) -> None:
        """An evaluation under way is of no use any more."""
        self._evaluations.stop()

    def _write_evaluation(self, step: int, found: Found) -> None:
        if found:
            kept = {name: value if math.isfinite(value) else None for name, value in found.items()}
            self._lines += self.store.add_to_curve({"step": step, "held_out": kept})
            words = ", ".join(f"{name} {value:.4f}" for name, value in found.items())
            self._tell(f"step {step}: held out: {words}")

    def save(self) -> None:
        """Write the state and the people."""
        tensors = {form.name: tensor for form, tensor in self.trainer.state()}
        self.store.save_state(tensors, self.trainer.step, self.trainer.job.checkpoints.keep)
        self.store.save_people(self.people)
        self._told_people_s = -math.inf  # who stands by saves them, too

    def save_weights(self) -> Path:
        """Write the weights under the model's own names; returns the file."""
        return self.store.save_weights({name: one.clone() for name, one in self.trainer.model.state_dict().items()})

    def _take_up(self) -> None:
        last = self.store.last_state()
        if last is None:
            return
        step, tensors = last
        forms = self.trainer.state_forms(step)
        held = {name: (tensor.dtype, tensor.numel()) for name, tensor in tensors.items()}
        if held != {form.name: (form.dtype, form.elements) for form in forms}:
            raise InvalidInput("its last state is of another model or optimizer", path=str(self.store.folder))
        self.trainer.load(tensors, step)
