"""What a backbone knows of the training: model and optimizer, the curve, the people, and all of it on the disk.

In: averages of steps, in their order, and what volunteers say of their losses. Out: the state of a step for those who
join, evaluations, and the files of backbone_store.py. Nobody's connection is known here.
"""

from collections.abc import Callable, Mapping
from pathlib import Path

from torch import Tensor

from ravnest.collaboration.backbone_store import BackboneStore
from ravnest.collaboration.curve import Curve
from ravnest.collaboration.people import read_people
from ravnest.collaboration.trainer import Trainer
from ravnest.collaboration.transfers import Form
from ravnest.errors import InvalidInput
from ravnest.job.config import Job


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
    ) -> None:
        """`resume`: go on from the last state in `folder`. Raises InvalidInput."""
        self.trainer = Trainer(job, job_file)
        self.store = BackboneStore(folder, resume=resume)
        self.people = read_people(folder)
        self._tell, self._now = tell, now
        if resume:
            self._take_up()
        self._curve = Curve(self.trainer.step * self.trainer.target_batch, now())
        self._evaluated = 0
        self._joiners: tuple[int, list[tuple[Form, Tensor]]] | None = None
        self.most_samples = self.trainer.target_batch + job.micro_batch - 1
        """Of one contribution: a volunteer stops at a whole batch, and its last micro-batch may go beyond it."""

    def of_joiners(self) -> tuple[int, list[tuple[Form, Tensor]]]:
        """The step, and the state as copies that all who join at that step share."""
        if self._joiners is None or self._joiners[0] != self.trainer.step:
            self._joiners = self.trainer.step, self.trainer.state()
        return self._joiners

    def heard(self, step: int, loss: float, samples: int) -> None:
        """A volunteer has a mean loss over so many samples of a step."""
        if step == self.trainer.step:
            self._curve.heard(loss, min(samples, self.most_samples))

    def apply(self, samples: Mapping[str, int], mean: Mapping[str, Tensor]) -> None:
        """Make a step of its mean over so many samples by peer; evaluate and save when that is due."""
        norm = self.trainer.apply(mean)
        entry = self._curve.committed(self.trainer.step, samples, norm, self._now())
        self.store.add_to_curve(entry.fields)
        self._tell(entry.line)
        every = max(1, self.trainer.job.evaluate_every // self.trainer.target_batch)
        if self.trainer.step % every == 0:
            self.evaluate()
            self.save()

    def evaluate(self) -> None:
        """Evaluate on the held-out set, once a step, and write it to the curve."""
        if self._evaluated == self.trainer.step:
            return
        self._evaluated = self.trainer.step
        found = self.trainer.evaluate()
        if found:
            self.store.add_to_curve({"step": self.trainer.step, "held_out": found})
            words = ", ".join(f"{name} {value:.4f}" for name, value in found.items())
            self._tell(f"step {self.trainer.step}: held out: {words}")

    def save(self) -> None:
        """Write the state and the people."""
        tensors = {form.name: tensor for form, tensor in self.trainer.state()}
        self.store.save_state(tensors, self.trainer.step, self.trainer.job.checkpoints.keep)
        self.store.save_people(self.people)

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
