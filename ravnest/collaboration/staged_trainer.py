"""A job's model as a volunteer trains it that several machines hold together: stages in a row, on lent machines.

In: as trainer.py, and the machines. Out: the same, so that a visit and a backbone see no difference: the same sums, the
same steps, the same bytes. Micro-batches follow each other through the stages while the weights stay as they are; those
that are under way when weights change are dropped and made again by the new ones. This machine reads the data, and
passes on what goes from stage to stage; it holds a gradient or a state only while that travels.
"""

import hashlib
import math
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from ravnest.collaboration.lent_machines import LentMachines, LentModel
from ravnest.collaboration.trainer import GRADIENTS, STATISTICS, MicroBatch, NotFinite, Trainer
from ravnest.errors import InvalidInput
from ravnest.job.config import Job
from ravnest.job.materials import capture_on
from ravnest.training.batches import Inputs, Target, in_order
from ravnest.training.sampler import derive_seed


class StagedTrainer(Trainer):
    """All methods belong to one thread at a time."""

    def __init__(
        self, job: Job, job_file: Path, machines: LentMachines, files: Mapping[str, bytes], *, order: str
    ) -> None:
        """`files`: of the job's code, which machines are sent. Raises InvalidInput at the job or the model."""
        super().__init__(job, job_file, device="meta", order=order)
        self._machines = machines
        sample, target = self.batch(0)
        captured = capture_on(job, job_file, sample)
        seed = derive_seed(job.seed, order, 0, 0, "stages") & ((1 << 62) - 1)
        total = self.total_steps
        self._lent = LentModel(files, job_file.name, captured, job.micro_batch, total, sample, target, seed)
        if machines.stages > len(captured.units):
            raise InvalidInput(
                f"the model has {len(captured.units)} units, and so as many stages at most", key="--stages"
            )
        self._inputs = tuple(spec.name for spec in captured.span(0, 1).inputs)
        self._places: dict[str, list[int]] = {}
        """By name, of parameters and buffers: the stages that hold it."""
        self._own: dict[str, Tensor] = {}
        """Buffers that no stage needs."""
        self._turns: dict[int, int] = {}  # by number of the micro-batch: its turn, while it is under way
        self._batches: dict[int, tuple[Inputs, Target]] = {}  # of those under way: a stream is not read again
        self._finished: int | None = None

    def ready(self) -> None:
        """Wait until each stage has its machine. Raises InvalidInput where the model does not fit, RunFailed."""
        spans = self._machines.assemble(self._lent)
        self._turns.clear()
        self._finished = None
        self._places.clear()
        for place, span in enumerate(spans):
            for spec in self._lent.captured.span(*span).weight_specs:
                self._places.setdefault(spec.name, []).append(place)
        homeless = self._named.keys() - self._places.keys()
        if homeless:
            raise InvalidInput(f"no stage holds {min(homeless)!r}", key="model")

    # Gradients.

    def compute(self, number: int) -> MicroBatch:
        """See Trainer. Those that follow are begun, too."""
        self._batches = {ahead: batch for ahead, batch in self._batches.items() if ahead >= number}
        self._turns = {ahead: turn for ahead, turn in self._turns.items() if ahead >= number}
        for ahead in range(number, number + self._machines.stages):
            if ahead not in self._batches:
                self._batches[ahead] = self.batch(ahead)
            if ahead not in self._turns:
                inputs, target = self._batches[ahead]
                self._turns[ahead] = self._machines.begin(in_order(inputs, self._inputs), target)
        turn = self._turns.pop(number)
        loss = self._machines.finished(turn)
        if loss is None or not math.isfinite(loss):
            self._drop()  # the stages before keep what they need for its backward, which does not come
            raise NotFinite("the loss of a micro-batch, or its gradient, is not finite (lower optimizer.lr?)")
        self._finished = turn
        return MicroBatch(loss, self.job.micro_batch)

    def count(self, samples: int) -> None:
        """See Trainer."""
        assert self._finished is not None
        self._machines.count(self._finished, samples)
        self._finished = None
        self._sum_samples += samples

    def contribution(self) -> list[Tensor]:
        """See Trainer. A tied parameter's gradient is the sum over all stages that use it."""
        samples, self._sum_samples = self._sum_samples, 0
        sums = self._machines.ask("sum", {name: self._places[name] for name in self._named}, self._named)
        held = {name: self._places[name][:1] for name in self._statistics if name in self._places}
        buffers = {**self._own, **self._machines.ask("buffer", held, self._statistics)}
        return [
            _joined([sums[name] for name in self._named]),
            _joined([buffers[name].to(torch.float32) for name in self._statistics]) * samples,
        ]

    def forget(self) -> None:
        """See Trainer. What is under way goes on: it is dropped where weights change."""
        self._machines.drop("sums")
        self._sum_samples = 0

    def _drop(self) -> None:
        self._turns.clear()
        self._finished = None
        self._machines.drop("turns")

    # Steps and states.

    def apply(self, mean: Mapping[str, Tensor]) -> float:
        """See Trainer."""
        norm, scale = self.clipped(mean[GRADIENTS])
        self._drop()
        at = 0
        for name, one in self._named.items():
            part = mean[GRADIENTS][at : at + one.numel()]
            self._machines.put(self._places[name], "gradient", name, part * scale if scale != 1.0 else part)
            at += one.numel()
        self._machines.step()
        at = 0
        for name, buffer in self._statistics.items():
            self._put_buffer(name, mean[STATISTICS][at : at + buffer.numel()])
            at += buffer.numel()
        self.step += 1
        return norm

    def load(self, vectors: Mapping[str, Tensor], step: int) -> None:
        """See Trainer."""
        self._drop()
        self._machines.clear(step)
        for name in self._named:
            self._machines.put(self._places[name], "weight", name, vectors[f"weights.{name}"])
        for name in (*self._statistics, *self._counters):
            self._put_buffer(name, vectors[f"buffers.{name}"])
        for number, (_, names, _) in enumerate(self._groups):
            for name in names:
                prefix = f"optimizer.{number}.{name}."
                for key, vector in vectors.items():
                    if key.startswith(prefix):
                        self._machines.put(self._places[name], "optimizer", name, vector, key.removeprefix(prefix))
        self.step = step
        self._sum_samples = 0

    def weights_hash(self) -> str:
        """See Trainer: asked for one by one, since no machine may have room for all."""
        digest = hashlib.sha256()
        for name in self._named:
            found = self._machines.ask("weight", {name: self._places[name][:1]}, self._named)
            digest.update(found[name].numpy().tobytes())
        return digest.hexdigest()

    def _put_buffer(self, name: str, vector: Tensor) -> None:
        if name in self._places:
            self._machines.put(self._places[name], "buffer", name, vector)
        else:
            self._own[name] = vector.clone()


def _joined(vectors: list[Tensor]) -> Tensor:
    return torch.cat(vectors) if vectors else torch.zeros(0)
