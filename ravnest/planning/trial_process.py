"""Tries the stages of a plan as a run would use them: `python -m ravnest.planning.trial_process FOLDER`.

In: a folder with `trial.json` (a job, and the programs of the stages of each pipeline) and the model's initial weights.
Out: `result.json` there, which says what went wrong, or that nothing did.

Each pipeline makes one step of training (forward, backward, update) and evaluates the first and the last batch of the
held-out set. The stages are those of a run, and so is what crosses a cut. One stage is in memory at a time: a stage's
forward runs again before its backward. Where large weights lie in files, all stages stay, without what they have read
of the files, and of two held-out batches of one form the first stands for both. A stage with such weights makes no
update, which would take the memory of its weights four times; that its optimizer takes them has been tried without
values. This process imports what a stage's process imports, and neither the model nor what it uses, so that an operator
which a stage would not know is not known here either.
"""

import json
import mmap
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from ravnest.checkpoints.weight_files import open_weights
from ravnest.errors import InvalidInput, ModelNotSplittable, RavnestError
from ravnest.factories import describe, import_modules
from ravnest.free_memory import take_huge_pages
from ravnest.job.config import Job, job_from_mapping
from ravnest.job.experts_table import experts_stand_in
from ravnest.planning.mapped_weights import Place
from ravnest.splitting import StageProgram
from ravnest.splitting.plain_programs import program_from
from ravnest.splitting.program import resolve_target
from ravnest.stage.assembling import batch_source, stage_compute
from ravnest.stage.boundary_tensors import StageCrossings
from ravnest.stage.compute import StageCompute
from ravnest.stage.setup import (
    ComputeResources,
    EvaluationSetup,
    StageBounds,
    StagePlace,
    StageSetup,
    TransportSetup,
    UserCode,
)
from ravnest.training.fingerprint import fingerprint
from ravnest.training.optimizer import ScheduleConfig
from ravnest.training.sampler import EvaluationBatches

TRIAL, RESULT, WEIGHTS = "trial.json", "result.json", "weights.safetensors"
Tensors = tuple[Tensor, ...]


@dataclass(frozen=True)
class TriedStage:
    """A stage's program, whether it recomputes, and its units where it does so one by one."""

    recomputes: bool
    program: StageProgram
    units: tuple[StageProgram, ...] = ()


@dataclass(frozen=True)
class Trial:
    """What is tried. `pipelines`: for each, its cluster's name and its stages."""

    job: Job
    job_file: str
    search_dirs: tuple[str, ...]
    pipelines: Sequence[tuple[str, Sequence[TriedStage]]]
    evaluation: EvaluationSetup
    data: str = ""
    """The fingerprint of the data that the planning process has; empty where it is not known."""
    mapped: frozenset[str] = frozenset()
    """The weights that lie in a file that is only mapped."""


class TrialFailed(Exception):
    """A stage that could not do what a run would ask of it; the message says which and what."""


def read_trial(folder: Path) -> Trial:
    """The trial that a folder describes."""
    said: dict[str, Any] = json.loads((folder / TRIAL).read_text())
    return Trial(
        job_from_mapping(said["job"]),
        said["job_file"],
        tuple(said["search_dirs"]),
        [
            (
                name,
                [
                    TriedStage(
                        bool(stage["recomputes"]),
                        program_from(stage["program"]),
                        tuple(program_from(unit) for unit in stage["units"]),
                    )
                    for stage in stages
                ],
            )
            for name, stages in said["pipelines"]
        ],
        EvaluationSetup(*said["evaluation"]),
        said["data"],
        frozenset(said["places"]),
    )


def try_stages(trial: Trial, weights: Mapping[str, Tensor], ran: Callable[[], None] = lambda: None) -> None:
    """Train and evaluate with each pipeline of the trial. `ran` is called whenever a stage has run.

    Raises TrialFailed naming the stage, or InvalidInput where the user's data or loss is what is wrong.
    """
    dirs = tuple(Path(path) for path in trial.search_dirs)
    for name, stages in trial.pipelines:
        for index, program in enumerate(stage.program for stage in stages):
            with _told(name, index, program, "cannot be made"):
                # Before anything else of the user's is imported: stages in the middle import no more than this.
                import_modules(program.imports, dirs)
                for code in (program.train, program.evaluate):
                    for operation in code.operations:
                        resolve_target(operation.target)
    for name, stages in trial.pipelines:
        _Pipeline(trial, weights, name, stages, ran).run()


class _told:  # noqa: N801 - used as a context
    """What is raised inside becomes a TrialFailed that names the stage. The user's own mistakes stay as they are."""

    def __init__(self, cluster: str, index: int, program: StageProgram, what: str) -> None:
        self._says = f"stage {cluster}.s{index} (units {program.start} to {program.end - 1}) {what}"

    def __enter__(self) -> None:
        return None

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        users = isinstance(error, InvalidInput) and not isinstance(error, ModelNotSplittable)
        if isinstance(error, Exception) and not users:
            said = str(error) if isinstance(error, RavnestError) else describe(error)
            raise TrialFailed(f"{self._says}: {said}") from error


class _Pipeline:
    """The stages of one cluster, of which one is in memory at a time."""

    def __init__(
        self,
        trial: Trial,
        weights: Mapping[str, Tensor],
        name: str,
        stages: Sequence[TriedStage],
        ran: Callable[[], None],
    ) -> None:
        self._weights, self._ran = weights, ran
        self._name = name
        self._data, self._job_file = trial.data, trial.job_file
        self._mapped = trial.mapped
        # An update after each micro-batch, at a rate that does not depend on how many follow.
        optimizer = trial.job.optimizer.model_copy(update={"schedule": ScheduleConfig()})
        job = trial.job.model_copy(update={"update_every": 1, "optimizer": optimizer})
        self._setups = [
            StageSetup(
                place=StagePlace(name, index, len(stages)),
                bounds=StageBounds(window=1, largest_window=1, recomputes=stage.recomputes),
                evaluation=trial.evaluation,
                job=job,
                code=UserCode(trial.job_file, trial.search_dirs),
                program=stage.program,
                units=stage.units,
                segments=(),
                machine=ComputeResources(torch.get_num_threads(), "cpu"),
                transport=TransportSetup(token=b"", max_message_bytes=1),
            )
            for index, stage in enumerate(stages)
        ]
        self._crossings = [StageCrossings(setup) for setup in self._setups]
        ends = {setup.index: setup for setup in (self._setups[0], self._setups[-1])}
        self._sources = {index: batch_source(setup) for index, setup in ends.items()}

    def run(self) -> None:
        with ExitStack() as leaving:
            for source in self._sources.values():
                if source is not None:
                    leaving.callback(source.close)
            self._check_data()
            self._evaluate()
            self._train()

    def _check_data(self) -> None:
        for source in self._sources.values():
            found = "" if source is None or not self._data else fingerprint(*source.sets)
            if found != self._data:
                raise InvalidInput(
                    f"its data are others in each process that calls it ({self._data} and {found}), and the first and"
                    " the last stage call it for themselves",
                    path=self._job_file,
                    key="data.factory",
                    hint="draw from torch's, numpy's or Python's global generator, which is seeded before each call, or"
                    " from one with a seed of its own",
                )

    def _evaluate(self) -> None:
        source = self._sources[0]
        assert source is not None
        plan = self._setups[0].evaluation
        held_out = len(EvaluationBatches(source.samples[1], plan.batch, short_last=plan.short_last))
        batches = sorted({0, held_out - 1}) if held_out else []
        if self._mapped and self._are_alike(batches):
            del batches[1:]
        carried: dict[int, Tensors] = dict.fromkeys(batches, ())
        for index in range(len(self._setups)):
            compute = self._made(index)
            for batch in batches:
                with self._told(index, f"cannot evaluate batch {batch} of the held-out set"):
                    carried[batch] = compute.evaluate(0, batch, carried[batch])
            self._ran()

    def _train(self) -> None:
        last = len(self._setups) - 1
        received: list[Tensors] = [()]
        passed: dict[int, StageCompute] = {}
        for index in range(last):
            compute, crossings = self._made(index), self._crossings[index]
            with self._told(index, "cannot train"):
                sent = compute.forward(0, crossings.activations_in.unpack(received[-1]))
                received.append(crossings.activations_out.pack(sent))
            self._ran()
            if self._mapped:
                passed[index] = compute
        gradients: Tensors = ()
        for index in range(last, -1, -1):
            compute = passed.pop(index) if index in passed else self._made(index)
            crossings = self._crossings[index]
            with self._told(index, "cannot train"):
                if index == last or not self._mapped:
                    compute.forward(0, crossings.activations_in.unpack(received[index]))
                sent, _ = compute.backward(0, crossings.gradients_in.unpack(gradients), ends_group=True)
                if not self._is_large(index):
                    compute.update(None)
                gradients = crossings.gradients_out.pack(sent)
            del compute  # with its gradients
            self._ran()

    def _are_alike(self, batches: Sequence[int]) -> bool:
        """Whether the tensors of these held-out batches have the same shapes and dtypes."""
        read = [[source.held_out(batch) for source in self._sources.values() if source] for batch in batches]
        forms = [[(one.shape, one.dtype) for one in tree_leaves(each) if isinstance(one, Tensor)] for each in read]
        return all(form == forms[0] for form in forms)

    def _made(self, index: int) -> StageCompute:
        setup = self._setups[index]
        with self._told(index, "cannot be made"):
            specs = setup.program.weight_specs
            copied = not self._is_large(index)
            own = {spec.name: self._weights[spec.name].to(spec.dtype, copy=copied) for spec in specs}
            return stage_compute(setup, self._sources.get(index), own, copy=False)

    def _is_large(self, index: int) -> bool:
        return any(spec.name in self._mapped for spec in self._setups[index].program.weight_specs)

    def _told(self, index: int, what: str) -> _told:
        return _told(self._name, index, self._setups[index].program, what)


class StoredWeights(Mapping[str, Tensor]):
    """The weights of a trial's folder, read when they are asked for. Large ones are mapped, and must not be changed."""

    def __init__(self, folder: Path) -> None:
        self._files = open_weights(folder / WEIGHTS)
        self._large: dict[str, tuple[str, int, Sequence[int], str]]
        self._large = json.loads((folder / TRIAL).read_text())["places"]
        self._maps: dict[str, mmap.mmap] = {}

    def __getitem__(self, name: str) -> Tensor:
        if name in self._large:
            file, offset, shape, word = self._large[name]
            dtype: torch.dtype = getattr(torch, word)
            if name not in self._maps:
                self._maps[name] = Place(file, offset).mapped(torch.Size(shape).numel() * dtype.itemsize)
            return torch.frombuffer(self._maps[name], dtype=dtype).view(shape)
        if name not in self._files.stored:
            raise KeyError(name)
        return self._files.read(name)

    def __iter__(self) -> Any:
        yield from self._files.stored
        yield from self._large

    def __len__(self) -> int:
        return len(self._files.stored) + len(self._large)

    def give_back(self) -> None:
        """Give the kernel back what has been read of the mapped weights. It comes again where it is read again."""
        for mapped in self._maps.values():
            mapped.madvise(mmap.MADV_DONTNEED)


def main(folder: Path) -> dict[str, str | None]:
    """Run the trial of a folder. Returns what went wrong by `message`, `path`, `key` and `hint`; empty if nothing."""
    if json.loads((folder / TRIAL).read_text())["places"]:
        take_huge_pages()
    try:
        trial = read_trial(folder)
        with torch.random.fork_rng(devices=[]), experts_stand_in(trial.job.experts):
            weights = StoredWeights(folder)
            try_stages(trial, weights, weights.give_back)
    except TrialFailed as error:
        return {"message": str(error)}
    except RavnestError as error:
        told = {name: getattr(error, name, None) for name in ("message", "path", "key", "hint")}
        return {**told, "message": told["message"] or str(error)}
    return {}


if __name__ == "__main__":
    where = Path(sys.argv[1])
    (where / RESULT).write_text(json.dumps(main(where)))
