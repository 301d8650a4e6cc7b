"""The experts that a host has on its disk: one safetensors file each, which a crash never leaves half written.

In: the state of an expert, with its term and its updates. Out: FOLDER/3.7.safetensors, or what such a file holds. The
term and the updates are tensors of the file, so that they belong to its state whatever happens.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from torch import Tensor

from ravnest.checkpoints.durable_files import DurableFiles
from ravnest.checkpoints.weight_files import headers, open_weights
from ravnest.errors import InvalidInput, NotWritten
from ravnest.experts.claims import Kept
from ravnest.experts.grid import MOST_TERM, MOST_UPDATES, Expert, Grid, expert_text

_KEPT = "kept"
_ENDING = ".safetensors"
_UNFINISHED = ".unfinished"


class ExpertFiles:
    """The files of one folder."""

    def __init__(self, folder: Path, grid: Grid, files: DurableFiles | None = None) -> None:
        """Make the folder where there is none."""
        self._folder, self._grid = folder, grid
        self._files = files or DurableFiles()
        self._files.make_folder(folder)

    def write(self, expert: Expert, state: Mapping[str, Tensor], kept: Kept) -> None:
        """Replace the file of an expert, at once or not at all. Raises NotWritten."""
        path = self.path(expert)
        unfinished = path.with_name(path.name + _UNFINISHED)
        numbers = torch.tensor([kept.term, kept.updates], dtype=torch.int64)
        try:
            self._files.write_tensors(unfinished, {**state, _KEPT: numbers})
            self._files.sync_file(unfinished)
            self._files.move(unfinished, path)
            self._files.sync_folder(self._folder)
        except (OSError, SafetensorError) as error:
            raise NotWritten(f"{path}: {' '.join(str(error).split())}") from error

    def read(self, expert: Expert) -> tuple[dict[str, Tensor], Kept]:
        """The state of an expert. Raises InvalidInput, which names the file, where it has none that can be read."""
        path = self.path(expert)
        held = open_weights(path)
        state = {name: held.read(name).clone() for name in held.stored}
        return state, _kept(state.pop(_KEPT, None), path)

    def stored(self) -> dict[Expert, Kept]:
        """The experts of this grid that have a file. Raises InvalidInput for a file that is broken."""
        found = {}
        for path in sorted(self._folder.glob(f"*{_ENDING}")):
            parts = path.name.removesuffix(_ENDING).split(".")
            expert = tuple(int(part) for part in parts if part.isdecimal())
            if len(expert) == len(parts) and self._grid.holds(expert):
                numbers = open_weights(path).read(_KEPT) if _KEPT in headers(path) else None
                found[expert] = _kept(numbers, path)
        return found

    def path(self, expert: Expert) -> Path:
        """Its file."""
        return self._folder / f"{expert_text(expert)}{_ENDING}"


def _kept(numbers: Tensor | None, path: Path) -> Kept:
    whole = numbers is not None and numbers.shape == (2,) and numbers.dtype == torch.int64
    most = torch.tensor([MOST_TERM, MOST_UPDATES])
    if numbers is None or not whole or bool((numbers < 0).any()) or bool((numbers > most).any()):
        raise InvalidInput(
            "expected the term and the updates of an expert, two whole numbers", path=str(path), key=_KEPT
        )
    term, updates = numbers.tolist()
    return Kept(term, updates)
