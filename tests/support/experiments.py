"""Experiments for tests: `python -m experiments.NAME --quick`, within the test's process."""

import contextlib
import io
import json
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch


def run_quick(main: Callable[[list[str]], int], folder: Path, *arguments: str) -> dict[str, Any]:
    """The document that an experiment's `main` writes into `folder` as result.json; its parts must all have run."""
    said = io.StringIO()
    with _process_restored(), contextlib.redirect_stderr(said):
        code = main(["--quick", "--out", str(folder), *arguments])
    assert code == 0, said.getvalue()
    document: dict[str, Any] = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    assert (folder / "result.png").read_bytes().startswith(b"\x89PNG")
    return document


def claims_of(part: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """A part's claims by name."""
    return {claim["name"]: claim for claim in part["claims"]}


def check_form(document: dict[str, Any], name: str, parts: Sequence[str]) -> None:
    """The document has these parts, and each has claims, and the command that runs it again."""
    assert list(document["parts"]) == list(parts)
    for part_name, part in document["parts"].items():
        assert part["claims"], part_name
        for claim in part["claims"]:
            assert claim.keys() == {"name", "statement", "target", "measured", "held"}
            assert claim["held"] in (True, False, None)
            assert claim["measured"]
        assert part["command"] == f"python -m experiments.{name} --quick --only {part_name}"


@contextlib.contextmanager
def _process_restored() -> Iterator[None]:
    """Restore what the command of an experiment sets in its process: torch's threads, and SIGTERM's handler.

    The module of the experiments' own jobs is forgotten too: it is imported by its bare name from several folders.
    """
    threads, handler = torch.get_num_threads(), signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        sys.modules.pop("paced_model", None)
        torch.set_num_threads(threads)
        signal.signal(signal.SIGTERM, handler)
