"""A run's weights for other programs: they load into the unmodified model, in one file or in parts."""

import contextlib
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from ravnest.checkpoints.durable_files import DurableFiles
from ravnest.checkpoints.run_folder import RunFolder
from ravnest.checkpoints.weight_files import open_weights
from ravnest.errors import InvalidInput
from ravnest.job.config import InitialWeightsConfig, Job
from ravnest.job.materials import make_model
from ravnest.results.export import ExportTarget, save_huggingface, save_weights
from ravnest.results.trained_run import TrainedRun
from tests.support.local import JOB_FILE, tiny_job

LLAMA = {"model_type": "llama", "vocab_size": 11, "hidden_size": 12, "intermediate_size": 24, "num_hidden_layers": 2}
LLAMA |= {"num_attention_heads": 2, "max_position_embeddings": 8}


def llama(**changes: Any) -> Job:
    return tiny_job(model={"huggingface": {**LLAMA, **changes}})


def trained(folder: Path, job: Job) -> tuple[TrainedRun, dict[str, Tensor]]:
    """A run with weights that are not the seed's, and what the unmodified model would save of them."""
    torch.manual_seed(8)
    weights = {name: tensor.clone() for name, tensor in make_model(job, JOB_FILE).state_dict().items()}
    folder.mkdir(exist_ok=True)
    save_file(weights, folder / "weights.safetensors")
    run = TrainedRun(RunFolder(folder), None, job, str(JOB_FILE))  # type: ignore[arg-type] # the plan is of no use here
    return run, weights


def equal(found: dict[str, Tensor], expected: dict[str, Tensor]) -> bool:
    return found.keys() == expected.keys() and all(torch.equal(found[name], expected[name]) for name in expected)


def place(path: Path, **options: Any) -> ExportTarget:
    return ExportTarget(path.parent, path.stem, "--weights", **options)


@pytest.mark.parametrize(
    "job",
    [
        tiny_job(),
        tiny_job(model={"factory": "tiny:cnn"}, data={"factory": "tiny:images"}),
        llama(tie_word_embeddings=True),
    ],
    ids=["gpt", "batch-norm", "tied"],
)
def test_what_is_written_loads_into_the_unmodified_model(tmp_path: Path, job: Job) -> None:
    run, weights = trained(tmp_path / "r", job)
    target = tmp_path / "new/out.safetensors"
    assert save_weights(run, open_weights(run.folder.weights), place(target)) == [target]
    assert equal(load_file(target), weights)
    make_model(job, JOB_FILE).load_state_dict(load_file(target), strict=True)


def test_names_that_tied_weights_have_are_all_written_though_a_checkpoint_holds_one(tmp_path: Path) -> None:
    job = llama(tie_word_embeddings=True)
    run, weights = trained(tmp_path / "r", job)
    save_file({n: t for n, t in weights.items() if n != "lm_head.weight"}, tmp_path / "checkpoint.safetensors")
    (written,) = save_weights(
        run, open_weights(tmp_path / "checkpoint.safetensors"), place(tmp_path / "out.safetensors")
    )
    assert equal(load_file(written), weights)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_floating_tensors_take_the_precision_asked_for_and_counters_stay(tmp_path: Path, dtype: Any) -> None:
    job = tiny_job(model={"factory": "tiny:cnn"}, data={"factory": "tiny:images"})
    run, weights = trained(tmp_path / "r", job)
    (written,) = save_weights(run, open_weights(run.folder.weights), place(tmp_path / "out.safetensors"), dtype)
    found = load_file(written)
    short = getattr(torch, dtype)
    assert equal(found, {n: t.to(short) if t.is_floating_point() else t for n, t in weights.items()})
    assert found["bn1.num_batches_tracked"].dtype == torch.int64


def test_numbers_that_a_precision_cannot_hold_are_refused(tmp_path: Path) -> None:
    run, weights = trained(tmp_path / "r", tiny_job())
    weights["head.bias"][3] = 1e6
    save_file(weights, run.folder.weights)
    said = r"weights\.safetensors: head\.bias: holds 1e\+06, beyond what torch\.float16 can; use bfloat16"
    with pytest.raises(InvalidInput, match=said):
        save_weights(run, open_weights(run.folder.weights), place(tmp_path / "out.safetensors"), "float16")


def test_large_weights_are_written_part_by_part_with_an_index(tmp_path: Path) -> None:
    run, weights = trained(tmp_path / "r", tiny_job())
    parts: list[float] = []
    target = place(tmp_path / "out.safetensors", part_bytes=10_000)
    written = save_weights(run, open_weights(run.folder.weights), target, progress=parts.append)
    assert len(written) > 3
    assert parts[-1] == 1.0
    *files, index = written
    assert all(sum(tensor.nbytes for tensor in load_file(file).values()) <= 10_000 for file in files)
    assert index == tmp_path / "out.safetensors.index.json"
    assert equal({name: tensor for file in files for name, tensor in load_file(file).items()}, weights)
    total = json.loads(index.read_text())["metadata"]["total_size"]
    assert total == sum(tensor.nbytes for tensor in weights.values())
    again = open_weights(index)  # as another run's initial_weights, or for an evaluation
    assert equal({name: again.read(name) for name in again.stored}, weights)


def test_nothing_is_replaced_without_force_and_nothing_older_stays_with_it(tmp_path: Path) -> None:
    run, weights = trained(tmp_path / "r", tiny_job())
    files, target = open_weights(run.folder.weights), tmp_path / "out.safetensors"
    save_weights(run, files, place(target, part_bytes=10_000))
    with pytest.raises(InvalidInput, match=r"out\.safetensors\.index\.json: --weights: is there already; --force"):
        save_weights(run, files, place(target))
    assert save_weights(run, files, place(target, force=True)) == [target]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.safetensors", "r"]
    assert equal(load_file(target), weights)


def test_a_place_that_cannot_be_written_is_told_before_anything_is_read(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InvalidInput, match=r"file/below: --weights: cannot be made \(Not a directory\)"):
        place(tmp_path / "file/below/out.safetensors").prepare()


def test_weights_of_another_model_are_refused(tmp_path: Path) -> None:
    run, _ = trained(tmp_path / "r", tiny_job())
    other, _ = trained(tmp_path / "other", tiny_job(model={"factory": "tiny:gpt", "args": {"layers": 2}}))
    with pytest.raises(
        InvalidInput, match=r"blocks\.2\.norm1\.weight: is missing; so are blocks\.2\.[^.]*\.bias, .* more$"
    ):
        save_weights(run, open_weights(other.folder.weights), place(tmp_path / "out.safetensors"))
    assert not (tmp_path / "out.safetensors").exists()


@pytest.mark.parametrize(("tied", "part_bytes"), [(False, 10**9), (True, 10**9), (True, 4_000)])
def test_transformers_loads_the_folder(tmp_path: Path, tied: bool, part_bytes: int) -> None:
    import transformers

    job = llama(tie_word_embeddings=tied)
    run, weights = trained(tmp_path / "r", job)
    folder = ExportTarget(tmp_path / "hf", "model", "--huggingface", part_bytes=part_bytes)
    written = save_huggingface(run, open_weights(run.folder.weights), folder)
    assert {path.parent for path in written} == {tmp_path / "hf"}
    assert ((tmp_path / "hf/model.safetensors.index.json") in written) == (part_bytes == 4_000)
    model, told = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "hf", output_loading_info=True)
    assert not any(told[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert type(model).__name__ == "LlamaForCausalLM"
    assert equal(model.state_dict(), weights)
    config = json.loads((tmp_path / "hf/config.json").read_text())
    assert (config["architectures"], config["model_type"], config["dtype"]) == (
        ["LlamaForCausalLM"],
        "llama",
        "float32",
    )


def test_a_shorter_precision_is_the_folders_own(tmp_path: Path) -> None:
    import transformers

    run, weights = trained(tmp_path / "r", llama(tie_word_embeddings=False))
    save_huggingface(
        run, open_weights(run.folder.weights), ExportTarget(tmp_path / "hf", "model", "--huggingface"), "bfloat16"
    )
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "hf", dtype="auto")
    assert equal(model.state_dict(), {name: tensor.bfloat16() for name, tensor in weights.items()})
    with safe_open(tmp_path / "hf/model.safetensors", framework="pt") as file:
        assert file.metadata() == {"format": "pt"}


def test_only_hugging_face_models_make_such_a_folder_and_none_is_replaced_unasked(tmp_path: Path) -> None:
    run, _ = trained(tmp_path / "r", tiny_job())
    folder = ExportTarget(tmp_path / "hf", "model", "--huggingface")
    with pytest.raises(InvalidInput, match=r"--huggingface: the job's model comes from a factory: .* --weights"):
        save_huggingface(run, open_weights(run.folder.weights), folder)
    assert not (tmp_path / "hf").exists()
    run, _ = trained(tmp_path / "r", llama())
    (tmp_path / "hf").mkdir()
    (tmp_path / "hf/config.json").write_text("{}")
    with pytest.raises(InvalidInput, match=r"hf/config\.json: --huggingface: is there already"):
        save_huggingface(run, open_weights(run.folder.weights), folder)
    assert [path.name for path in (tmp_path / "hf").iterdir()] == ["config.json"]


def test_the_tokenizer_and_the_settings_of_generation_come_along(tmp_path: Path) -> None:
    base = tmp_path / "base"
    base.mkdir()
    for name in ("tokenizer.json", "merges.txt", "spm.model", "model.safetensors", "notes.txt"):
        (base / name).write_text(f"of {name}")
    job = llama().model_copy(update={"initial_weights": InitialWeightsConfig(path=str(base))})
    run, _ = trained(tmp_path / "r", job)
    folder = ExportTarget(tmp_path / "hf", "model", "--huggingface")
    save_huggingface(run, open_weights(run.folder.weights), folder)
    names = ["config.json", "generation_config.json", "merges.txt", "model.safetensors", "spm.model", "tokenizer.json"]
    assert sorted(path.name for path in (tmp_path / "hf").iterdir()) == names
    assert (tmp_path / "hf/tokenizer.json").read_text() == "of tokenizer.json"
    made = json.loads((tmp_path / "hf/generation_config.json").read_text())
    assert "transformers_version" in made
    (base / "generation_config.json").write_text("{}")
    (tmp_path / "hf/config.json").unlink()
    with pytest.raises(InvalidInput, match=r"hf/generation_config\.json: --huggingface: is there already"):
        save_huggingface(run, open_weights(run.folder.weights), ExportTarget(tmp_path / "hf", "other", "--huggingface"))
    save_huggingface(run, open_weights(run.folder.weights), replace(folder, force=True))
    assert (tmp_path / "hf/generation_config.json").read_text() == "{}"


class Crash(BaseException):
    """The process is gone."""


class Crashing(DurableFiles):
    """Moves, writes and removes so many files and no more."""

    def __init__(self, left: int = 10**9) -> None:
        self.left, self.done = left, 0

    def _count(self) -> None:
        if self.done == self.left:
            raise Crash
        self.done += 1

    def move(self, source: Path, target: Path) -> None:
        self._count()
        super().move(source, target)

    def write_bytes(self, path: Path, data: bytes | memoryview) -> None:
        self._count()
        super().write_bytes(path, data)

    def remove_file(self, path: Path) -> None:
        self._count()
        super().remove_file(path)


@pytest.mark.parametrize("before", [None, 10**9, 4_000], ids=["new", "one file", "in parts"])
def test_a_crash_at_any_moment_leaves_a_whole_folder_or_one_that_transformers_refuses(
    tmp_path: Path, before: int | None
) -> None:
    run, _ = trained(tmp_path / "r", llama(tie_word_embeddings=False))
    other, _ = trained(tmp_path / "other", llama(tie_word_embeddings=False, intermediate_size=20))
    old, folder = tmp_path / "old", tmp_path / "hf"
    old.mkdir()
    (old / "notes.txt").write_text("of the user")
    if before is not None:
        save_huggingface(other, open_weights(other.folder.weights), ExportTarget(old, "model", "-", part_bytes=before))

    def exported(disk: DurableFiles) -> dict[str, bytes]:
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(old, folder)
        target = ExportTarget(folder, "model", "-", force=True, part_bytes=4_000, disk=disk)
        with contextlib.suppress(Crash):
            save_huggingface(run, open_weights(run.folder.weights), target)
        return {path.name: path.read_bytes() for path in folder.iterdir()}

    counting = Crashing()
    whole = exported(counting)
    first = {path.name: path.read_bytes() for path in old.iterdir()}
    refused = 0
    for operations in range(counting.done):
        found = exported(Crashing(operations))
        refused += "config.json" not in found
        assert "config.json" not in found or found in (first, whole), operations
    assert refused
    assert whole["notes.txt"] == b"of the user"


def test_what_a_crash_left_is_gone_with_the_next_export(tmp_path: Path) -> None:
    run, _ = trained(tmp_path / "r", llama())
    (tmp_path / "hf/.export.new").mkdir(parents=True)
    (tmp_path / "hf/.export.new/model-00001-of-00009.safetensors").write_text("half")
    save_huggingface(run, open_weights(run.folder.weights), ExportTarget(tmp_path / "hf", "model", "--huggingface"))
    names = ["config.json", "generation_config.json", "model.safetensors"]
    assert sorted(path.name for path in (tmp_path / "hf").iterdir()) == names


def test_a_folder_that_takes_no_files_is_refused_though_its_permissions_would_let(tmp_path: Path) -> None:
    run, _ = trained(tmp_path / "r", tiny_job())
    with pytest.raises(InvalidInput, match=r"/proc: --weights: cannot be written to \("):
        save_weights(run, open_weights(run.folder.weights), place(Path("/proc/x.safetensors")))


def test_a_loss_with_parameters_is_exported_under_its_prefix(tmp_path: Path) -> None:
    loss = {"factory": "measured:ArcFace"}
    job = tiny_job(model={"factory": "measured:embedder"}, data={"factory": "tiny:images"}, loss=loss)
    run, weights = trained(tmp_path / "r", job)
    with pytest.raises(InvalidInput, match=r"loss\.directions: is missing"):
        save_weights(run, open_weights(run.folder.weights), place(tmp_path / "out.safetensors"))
    weights |= {"loss.directions": torch.ones(5, 16), "loss.norm": torch.tensor(3.0)}
    save_file(weights, run.folder.weights)
    (written,) = save_weights(run, open_weights(run.folder.weights), place(tmp_path / "out.safetensors"))
    assert equal(load_file(written), weights)


def test_a_model_with_bottlenecks_makes_no_such_folder(tmp_path: Path) -> None:
    narrow = {"after": "model.layers.0", "features": LLAMA["hidden_size"], "width": 2}
    run, weights = trained(tmp_path / "r", tiny_job(model={"huggingface": LLAMA, "bottlenecks": [narrow]}))
    assert "model.layers.0.bottleneck.up.weight" in weights
    with pytest.raises(InvalidInput, match=r"--huggingface: the job's model has bottlenecks, .* --weights"):
        save_huggingface(run, open_weights(run.folder.weights), ExportTarget(tmp_path / "hf", "model", "--huggingface"))
