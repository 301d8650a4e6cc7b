"""What the user wants trained: a job as one typed, frozen object.

In: a job.yaml, the mapping that a plan embeds, or the arguments of `Job(...)` in Python. Out: a `Job`, or an
InvalidInput with a line for each mistake. This module fixes the keys of a job, their defaults and their limits (design
§4). It imports none of the user's code and knows no machines.
"""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, JsonValue, PrivateAttr, ValidationError, model_validator

from cluster_planner import (
    MOST_IN_FLIGHT,
    SYNCHRONOUS,
    ActivationCheckpointing,
    NodeData,
    Schedule,
    SplitBackward,
    Tied,
    problems_of,
    read_validated,
)
from ravnest.checkpoints.run_folder import CheckpointsConfig
from ravnest.errors import InvalidInput
from ravnest.factories import FactoryConfig, FunctionConfig, Reference
from ravnest.job.callables import as_written
from ravnest.job.experts_table import ExpertsTableConfig
from ravnest.job.modes import Mode, ReadyProcesses, StopConfig, check_mode
from ravnest.job_sections import NonNegativeFloat, NonNegativeInt, PositiveInt, Section
from ravnest.splitting.bottlenecks import BottleneckConfig
from ravnest.training.averaging import AveragingConfig
from ravnest.training.named_measures import LOSSES, METRICS, MeasureConfig, check_name
from ravnest.training.optimizer import OptimizerConfig, ScheduleConfig
from ravnest.training.precision import Precision, WireConfig

__all__ = [
    "MOST_WORKERS",
    "AveragingConfig",
    "DataConfig",
    "FactoryConfig",
    "FunctionConfig",
    "InitialWeightsConfig",
    "Job",
    "MeasureConfig",
    "ModelConfig",
    "OptimizerConfig",
    "ScheduleConfig",
    "StopConfig",
    "data_of_node",
    "job_from_mapping",
    "load_job",
]


class ModelConfig(Section):
    """The model: either a factory in the user's code, or a Hugging Face configuration."""

    factory: Reference | None = None
    """`package.module:attribute` of a callable that returns the torch.nn.Module."""

    args: dict[str, JsonValue] = Field(default_factory=dict)
    """Keyword arguments of the factory."""

    huggingface: dict[str, JsonValue] | None = None
    """`model_type` and the other keys of a transformers configuration."""

    bottlenecks: tuple[BottleneckConfig, ...] = ()
    """Where the model is narrowed, so that a cut there costs few bytes."""

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if (self.factory is None) == (self.huggingface is None):
            raise ValueError("give either factory (with its args) or huggingface")
        if self.huggingface is not None and self.args:
            raise ValueError("args belong to a factory; a huggingface model takes its keys directly")
        if self.huggingface is not None and not isinstance(self.huggingface.get("model_type"), str):
            raise ValueError("huggingface needs a model_type, such as llama")
        return self


class InitialWeightsConfig(Section):
    """Files that a new run takes its weights from; without them, weights are made from the seed."""

    path: str
    """A .safetensors file, a Hugging Face folder, a run's folder or a checkpoint, relative to the job file's folder."""

    new: tuple[str, ...] = ()
    """Patterns (`classifier.*`) of weights that the files may lack: they start from the seed."""

    ignored: tuple[str, ...] = ()
    """Patterns of tensors in the files that the model has no use for."""


MOST_WORKERS = 64
"""The largest number of processes that read ahead in a stage."""


class DataConfig(FactoryConfig):
    """The data: a factory of the user's, and how its samples become batches."""

    collate_fn: Reference | None = None
    """A function that makes a batch of a list of samples."""

    workers: Annotated[NonNegativeInt, Field(le=MOST_WORKERS)] | None = None
    """Processes that read ahead in each first and last stage; None: what the data says, or 0."""

    inputs: Annotated[tuple[str, ...], Field(min_length=1)] | None = None
    """Of samples that are dicts, the keys of the model's inputs; None: all that are no target."""

    targets: Annotated[tuple[str, ...], Field(min_length=1)] | None = None
    """Of samples that are dicts, the keys of the target; None: the first of labels, label and target."""

    @property
    def said(self) -> str:
        """What makes the samples, as text: the factory with its arguments, and the keys that are given."""
        kept = {"factory", "args"} | {key for key in ("collate_fn", "inputs", "targets") if getattr(self, key)}
        return self.model_dump_json(include=kept)


def _initial_weights(value: object) -> object:
    return {"path": value} if isinstance(value, str) else value


def _loss(value: object) -> object:
    return _named_or_made(value, LOSSES, "loss")


def _metric(value: object) -> object:
    return _named_or_made(value, METRICS, "metric")


def _named_or_made(value: object, known: tuple[str, ...], kind: str) -> object:
    if isinstance(value, FactoryConfig | FunctionConfig):
        return value
    if isinstance(value, Mapping) and "name" not in value:
        return (FunctionConfig if "function" in value else FactoryConfig).model_validate(value)
    if isinstance(value, Mapping):
        value = MeasureConfig.model_validate(value)
    if not isinstance(value, str | MeasureConfig):
        raise ValueError(f"expected the name of a {kind} ({', '.join(known)}) or {{factory: ..., args: ...}}")
    try:
        check_name(value if isinstance(value, str) else value.name, known, kind)
    except InvalidInput as error:
        raise ValueError(str(error)) from None
    return value


class Job(Section):
    """What is trained, on what, and how: the keys of a job.yaml as keyword arguments.

    `model`, `data`, `loss`, `metrics` and `sample` may be callables of a module or of a guarded script, or a
    functools.partial of one with keyword arguments (ravnest/job/callables.py says which can be used). The model's
    callable returns the torch.nn.Module, the data's an object with the datasets `train` and `held_out`; a loss and a
    metric are called with (output, target) and return the mean over the samples; `sample` is called with (model, data)
    after training.

    `model_dump(mode="json")` gives the mapping that a plan embeds and `job_from_mapping` reads back.

    >>> job = Job(model={"huggingface": {"model_type": "llama"}}, data={"factory": "texts:wiki"}, stop={"epochs": 2})
    >>> job.optimizer.name, job.micro_batch, job.file.name
    ('adamw', 8, 'Job')
    """

    model: ModelConfig
    """What is trained."""

    frozen: tuple[str, ...] = ()
    """Patterns (`encoder.*`) of parameters that are not trained, and are saved as they are."""

    initial_weights: Annotated[InitialWeightsConfig | None, BeforeValidator(_initial_weights)] = None
    """What it starts from; None: weights made from the seed."""

    data: DataConfig
    """Returns an object with `.train` and `.held_out`: map-style datasets of (inputs, target) or of dicts."""

    loss: Annotated[str | MeasureConfig | FactoryConfig | FunctionConfig, BeforeValidator(_loss)] = "cross_entropy"
    """cross_entropy or mse, alone or with choices (`{name: cross_entropy, label_smoothing: 0.1}`), a function (output,
    target) → mean over the samples, or a factory that returns one, which may be a module with parameters."""

    metrics: tuple[Annotated[str | MeasureConfig | FactoryConfig | FunctionConfig, BeforeValidator(_metric)], ...] = ()
    """Shown at evaluations beside the loss: accuracy, perplexity, functions or factories."""
    mode: Mode = "planned"
    """planned: by a plan over nodes. collaborative: by volunteers who come and go (`ravnest collaborate`)."""
    target_batch: PositiveInt | None = None  # samples of all volunteers that make one step of a collaboration
    delayed_step: Annotated[bool, Field(strict=True)] = False  # volunteers compute on while a batch is averaged
    gradient_rank: PositiveInt | None = None  # of two thin matrices that travel instead of each large gradient
    spot_check_share: Annotated[float, Field(ge=0.0, le=1.0)] = 0.0  # a micro-batch of so many is computed again
    micro_batch: PositiveInt = 8
    """Samples that one forward and one backward of a stage handle."""

    update_every: PositiveInt = 8
    """Micro-batches that a stage accumulates for one update."""

    experts: ExpertsTableConfig | None = None
    """Where the experts are found that layers `RemoteMixtureOfExperts` of the model call."""

    optimizer: OptimizerConfig = Field(default_factory=OptimizerConfig)
    """A torch.optim class, its arguments, its schedule and clipping."""

    schedule: Schedule = "async"
    """async, or a synchronous baseline: 1f1b or gpipe, which finish each update before they begin the next."""

    max_staleness: Annotated[NonNegativeInt | Literal["auto"], Field(union_mode="left_to_right")] = 1
    """Updates between the weights of a gradient and its use, at most; 0 is synchronous, as 1f1b and gpipe imply. auto:
    the planner chooses, and writes the number into the plan."""

    split_backward: SplitBackward = "auto"
    """Whether stages send input gradients before they compute weight gradients: auto (where it pays; not in 1f1b and
    gpipe, which are baselines), always, never."""

    precision: Precision = "float32"
    """What operations compute in where it is safe: float32, bfloat16, float16. Weights stay float32."""

    activation_checkpointing: ActivationCheckpointing = "auto"
    """Whether stages forget activations and run forwards again: auto (where memory is short), always, never."""

    tied: Tied = "exact"
    """How parameters are trained that several stages of a cluster use: exact (one stage owns each and applies the
    gradients of all in each update), averaged (each stage has a copy of its own, and every round averages them)."""

    average_every: PositiveInt = 4096
    """Samples of the whole fleet that make one round of averaging."""

    max_lag: PositiveInt = 1
    """Rounds that a stage may have contributed to and not yet merged."""

    averaging: AveragingConfig = Field(default_factory=AveragingConfig)
    """How clusters are weighed, the outer optimizer, and the form in which progress travels."""

    wire: WireConfig = Field(default_factory=WireConfig)
    """The form in which activations and gradients travel between stages."""

    stop: StopConfig
    """When the run ends."""

    evaluate_every: PositiveInt = 20_000
    """Samples of the whole fleet between evaluations on the held-out set."""

    checkpoints: CheckpointsConfig = Field(default_factory=CheckpointsConfig)
    """How many checkpoints are kept, and how large a file of final weights may be."""

    wait_for_driver_minutes: NonNegativeFloat = 10.0
    """How long stages that hear no driver keep what they hold for one that takes the run over; 0: not at all."""

    ready_processes: ReadyProcesses = "auto"
    """Whether one waits beside each stage, to take its place: auto (with --address, where memory is), always, never."""

    seed: NonNegativeInt = 0
    """Of the initial weights, the order of samples and dropout."""

    sample: FactoryConfig | None = None
    """Called with (model, data) after training; the text it returns is shown."""

    report_to: list[FactoryConfig] = Field(default_factory=list)
    """Each makes a tracker, which is called with each record of metrics.jsonl: see ravnest/results/trackers.py."""

    _file: Path | None = PrivateAttr(default=None)

    def __init__(
        self,
        *,
        model: ModelConfig | Mapping[str, Any] | Callable[..., Any],
        data: DataConfig | Mapping[str, Any] | Callable[..., Any],
        stop: StopConfig | Mapping[str, Any],
        loss: str
        | MeasureConfig
        | FactoryConfig
        | FunctionConfig
        | Mapping[str, Any]
        | Callable[..., Any] = "cross_entropy",
        **others: Any,
    ) -> None:
        """A job made in Python. `others` are the other fields of this class, by their names.

        Raises:
            InvalidInput: a line for each key that is unknown or has a value that it cannot have.
        """
        given, file = as_written({"model": model, "data": data, "stop": stop, "loss": loss, **others})
        try:
            super().__init__(**given)
        except ValidationError as error:
            raise InvalidInput.several(problems_of(error, Job, given)) from None
        self._file = file

    # pydantic reads a mapping without calling __init__, so that its errors keep their places in the file.
    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]

    def __eq__(self, other: object) -> bool:
        """Jobs with the same keys are equal, wherever they were written."""
        return isinstance(other, Job) and self.model_dump() == other.model_dump()

    __hash__ = None  # type: ignore[assignment]

    @property
    def file(self) -> Path:
        """The job.yaml that it was read from, or the module or package of its callables; code lies in the same folder,
        which is the one that one works in for a job that names its code in text only.
        """
        return self._file if self._file is not None else Path.cwd() / "Job"

    @property
    def staleness_bound(self) -> int:
        """`max_staleness` as a number. Raises InvalidInput where it is `auto`, which it is until a plan is made."""
        if self.max_staleness == "auto":
            raise InvalidInput("is auto, which is for planning: expected a number here", key="max_staleness")
        return self.max_staleness

    @property
    def references(self) -> tuple[tuple[str, str], ...]:
        """Key and `module:name` of each callable in the user's code that it names."""
        named = [("data.factory", self.data.reference)]
        if self.data.collate_fn is not None:
            named.append(("data.collate_fn", self.data.collate_fn))
        if self.model.factory is not None:
            named.append(("model.factory", self.model.factory))
        for key, several in (("loss", (self.loss,)), ("metrics", self.metrics), ("sample", (self.sample,))):
            named += [(key, each.reference) for each in several if isinstance(each, FactoryConfig | FunctionConfig)]
        return tuple(named)

    @model_validator(mode="before")
    @classmethod
    def _imply_no_staleness(cls, data: object) -> object:
        if not isinstance(data, Mapping) or data.get("schedule") not in SYNCHRONOUS:
            return data
        return {**data, "max_staleness": 0} if data.get("max_staleness", "auto") == "auto" else data

    @model_validator(mode="after")
    def _fits_its_mode(self) -> Self:
        check_mode(self)
        return self

    @model_validator(mode="after")
    def _parts_agree(self) -> Self:
        if self.schedule in SYNCHRONOUS and self.max_staleness:
            raise ValueError(
                f"max_staleness: schedule {self.schedule} is synchronous, so it must be 0 (or left out),"
                f" not {self.max_staleness}"
            )
        if self.experts is not None and self.precision == "float16":
            raise ValueError(
                "precision: float16 multiplies gradients by a scale, and runs a backward that overflows again; experts"
                " of others would learn from both: use bfloat16 or float32"
            )
        if self.stop.minutes is not None and self.optimizer.schedule.name != "constant":
            raise ValueError(
                f"optimizer.schedule.name: {self.optimizer.schedule.name} needs a known end, which a run that"
                " stops by minutes lacks: use constant, or stop by samples or epochs"
            )
        in_flight = (1 if self.max_staleness == "auto" else self.max_staleness + 1) * self.update_every
        if in_flight > MOST_IN_FLIGHT:
            raise ValueError(
                f"update_every: (max_staleness + 1) · update_every must be at most {MOST_IN_FLIGHT:,}, not"
                f" {in_flight:,}: larger updates take a larger micro_batch"
            )
        per_update = self.micro_batch * self.update_every
        if self.mode == "planned" and self.stop.samples is not None and self.stop.samples < per_update:
            raise ValueError(
                f"stop.samples: {self.stop.samples} is less than one update"
                f" (micro_batch · update_every = {self.micro_batch} · {self.update_every} = {per_update})"
            )
        return self


def load_job(path: str | os.PathLike[str]) -> Job:
    """The job of a job.yaml. Raises InvalidInput with a line for each mistake."""
    job = read_validated(path, Job)
    job._file = Path(path).resolve()
    return job


def data_of_node(job: Job, own: NodeData | None) -> Job:
    """The job as a node reads its data: with the node's `own` factory, or with the job's and the node's arguments."""
    if own is None:
        return job
    args = dict(own.args) if own.factory is not None else {**job.data.args, **own.args}
    given = {"factory": own.factory or job.data.factory, "args": args}
    return job.model_copy(update={"data": DataConfig.model_validate({**job.data.model_dump(), **given})})


def job_from_mapping(mapping: Mapping[str, object], path: str | None = None, under: str = "") -> Job:
    """The job that a plan embeds.

    Raises InvalidInput with a line for each mistake. Each line names `path`, and the key after the prefix `under`.
    """
    try:
        return Job.model_validate(mapping)
    except ValidationError as error:
        problems = [(under + (key or ""), message) for key, message in problems_of(error, Job, mapping)]
        raise InvalidInput.several(problems, path=path) from None
