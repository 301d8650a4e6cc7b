"""Weights that are divided over several files, as Hugging Face does: which tensor goes where, and the index that tells.

In: the forms of tensors, and a function that reads one of them. Out: safetensors files of a bounded size, and an index
where it is more than one. One tensor at a time is read, and nobody finds half of the files: they are written beside
their places, moved there together, and the index comes last.
"""

import contextlib
import glob
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from torch import Tensor

from ravnest.checkpoints.checkpoint import told
from ravnest.checkpoints.durable_files import DurableFiles
from ravnest.checkpoints.tensor_stream import TensorForm, TensorStream, head_of, in_file_order

PART_BYTES = 5_000_000_000
"""The most bytes of one file where nothing else is said: the limit that Hugging Face uses too."""


def shards(sizes: Mapping[str, int], most_bytes: int) -> list[list[str]]:
    """The names in order, in groups of at most `most_bytes` each; a larger tensor has a group of its own."""
    groups: list[list[str]] = [[]]
    held = 0
    for name, size in sizes.items():
        if groups[-1] and held + size > most_bytes:
            groups.append([])
            held = 0
        groups[-1].append(name)
        held += size
    return groups


def shard_names(stem: str, count: int) -> list[str]:
    """The names of `count` files: `model.safetensors`, or `model-00001-of-00003.safetensors` and so on."""
    if count == 1:
        return [f"{stem}.safetensors"]
    return [f"{stem}-{number:05d}-of-{count:05d}.safetensors" for number in range(1, count + 1)]


def index_name(stem: str) -> str:
    """The name of the index of several files."""
    return f"{stem}.safetensors.index.json"


def shard_index(groups: Sequence[Sequence[str]], names: Sequence[str], total_bytes: int) -> str:
    """The text of the index that says which of the files `names` holds each tensor of `groups`."""
    places = {tensor: name for group, name in zip(groups, names, strict=True) for tensor in group}
    return json.dumps({"metadata": {"total_size": total_bytes}, "weight_map": places}, indent=2) + "\n"


@dataclass(frozen=True)
class ShardedWeights:
    """A place for weights: files in `folder` whose names begin with `stem`, of at most `part_bytes` each."""

    folder: Path
    stem: str
    part_bytes: int = PART_BYTES
    files: DurableFiles = field(default_factory=DurableFiles)
    """The operations on files, for tests."""

    def fits(self, forms: Mapping[str, TensorForm]) -> bool:
        """Whether these tensors fit one file."""
        return len(shards({name: form.nbytes for name, form in forms.items()}, self.part_bytes)) == 1

    def remove(self) -> None:
        """Remove the files that are there, the index first, and their folder where nothing else is in it.

        Raises NotWritten when the disk refuses.
        """
        with told(self.folder):
            found = self.existing()
            for path in sorted(found, key=lambda path: path.suffix != ".json"):
                self.files.remove_file(path)
        if found:
            with contextlib.suppress(OSError):
                self.folder.rmdir()

    def existing(self) -> list[Path]:
        """The files of weights that are there already, with their index."""
        names = (shard_names(self.stem, 1)[0], index_name(self.stem))
        parts = self.folder.glob(f"{glob.escape(self.stem)}-?????-of-?????.safetensors")
        return [*(self.folder / name for name in names if (self.folder / name).exists()), *sorted(parts)]

    def write(
        self,
        forms: Mapping[str, TensorForm],
        read: Callable[[str], Tensor],
        progress: Callable[[float], None] = lambda done: None,
    ) -> list[Path]:
        """Write the tensors of these forms in place of what is there. Returns the files; the index comes last.

        Arguments:
            forms: each tensor's form, by name.
            read: the tensor of a name, which has that form. It is called once for each, and its result is not kept.
            progress: hears which share is done, from 0 to 1.

        Raises NotWritten when the disk refuses, and what `read` raises. What was there is untouched then.
        """
        groups = shards({name: form.nbytes for name, form in forms.items()}, self.part_bytes)
        names = shard_names(self.stem, len(groups))
        files, before = self.files, self.existing()
        beside = [self.folder / f".{name}.new" for name in names]
        try:
            with told(self.folder):
                files.make_folder(self.folder)
            for number, (group, path) in enumerate(zip(groups, beside, strict=True), start=1):
                with told(self.folder / names[number - 1]):
                    self._write_file(path, [forms[name] for name in group], read)
                progress(number / len(groups))
        except BaseException:  # an interrupt, too, would leave parts as large as the model
            for path in beside:
                with contextlib.suppress(OSError):
                    path.unlink(missing_ok=True)  # a full disk has room again
            raise
        index, written = self.folder / index_name(self.stem), [self.folder / name for name in names]
        with told(self.folder):
            if index in before:  # old parts and new ones would fit it alike
                files.remove_file(index)
                files.sync_folder(self.folder)
            for path, final in zip(beside, written, strict=True):
                files.move(path, final)
            if len(groups) > 1:
                new = self.folder / f".{index.name}.new"
                total_bytes = sum(form.nbytes for form in forms.values())
                files.write_bytes(new, shard_index(groups, names, total_bytes).encode())
                files.sync_file(new)
                files.sync_folder(self.folder)
                files.move(new, index)
                written.append(index)
            files.sync_folder(self.folder)
            for left in before:
                if left not in written and left != index:
                    files.remove_file(left)  # a part of older weights could be taken for one of these
        return written

    def _write_file(self, path: Path, forms: Sequence[TensorForm], read: Callable[[str], Tensor]) -> None:
        ordered = in_file_order(forms)
        stream = TensorStream(path, self.files)
        stream.write(head_of(ordered))
        for form in ordered:
            stream.write_tensor(read(form.name), form.dtype)
        stream.finish()
