"""The experts that a job's model calls: where their hash table is, and a client of it for each process that needs one.

In: the job's section `experts`, and the programs of a stage. Out: open clients, by which the layers
`RemoteMixtureOfExperts` of the model ask (ravnest/experts/askers.py). A job without experts imports nothing of them.
"""

import socket
import threading
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field
from torch import nn

from ravnest.errors import InvalidInput, naming
from ravnest.job_sections import PositiveFloat, Section
from ravnest.splitting import StageProgram

OPERATORS = "ravnest.experts.operators"
"""The module that a program imports whose span asks experts."""

ASK, CONFIG_PLACE = "ravnest.ask_experts.default", 3
"""The operation, and the place of the grid's description among its arguments."""

WAIT_S, MOST_WAIT_S = 60.0, 150.0
"""For a first expert at a stage's start; the driver gives the whole start START_DEADLINE_S (ravnest/stage)."""

MOST_SILENT = 8
"""Backwards in a row that no expert answers before a stage fails: a host that is slow once ends no run. Each gives no
gradient to what is below the layer, and is counted."""

_opening = threading.Lock()


class ExpertsTableConfig(Section):
    """Where a run finds the experts that others host."""

    peers: Annotated[tuple[str, ...], Field(min_length=1)]
    """Nodes of the hash table, as HOST:PORT; one that answers is enough."""

    token_file: str | None = None
    """The file with the token that all members share, on each machine; a relative path is taken from the job's folder.
    Without it only experts on the same machine can be asked."""

    wait_s: Annotated[PositiveFloat, Field(le=MOST_WAIT_S)] = WAIT_S
    """How long a stage waits at its start until a first expert can be called."""


@contextmanager
def experts_stand_in(table: ExpertsTableConfig | None) -> Iterator[None]:
    """While a plan is made or a speed measured no expert is asked, and none learns: stand-ins compute."""
    if table is None:
        yield
        return
    from ravnest.experts.askers import standing_in

    with standing_in():
        yield


def answers_kept(table: ExpertsTableConfig | None, answers: deque[Any]) -> AbstractContextManager[None]:
    """Inside, `answers` gets what experts answer, for the same forward run again inside `answers_again`."""
    if table is None:
        return nullcontext()
    from ravnest.experts import askers

    return askers.answers_kept(answers)


def answers_again(table: ExpertsTableConfig | None, answers: deque[Any]) -> AbstractContextManager[None]:
    """Inside, no expert is asked: each operation gets what it got the first time."""
    if table is None:
        return nullcontext()
    from ravnest.experts import askers

    return askers.answers_again(answers)


def asks_experts(program: StageProgram) -> bool:
    """Whether a span of a model asks experts of others."""
    return OPERATORS in program.imports


def check_experts(table: ExpertsTableConfig | None, program: StageProgram, job_file: str | Path) -> str | None:
    """What a plan of a model that asks experts does not count, in words; None for any other model.

    Raises InvalidInput where the model asks experts, and the job does not say where they are.
    """
    if table is None and asks_experts(program):
        raise InvalidInput(
            "the model has a layer RemoteMixtureOfExperts, and the job does not say where its experts are",
            path=str(job_file),
            key="experts",
            hint="give the table's nodes, as in experts: {peers: ['192.0.2.1:7700'], token_file: token}",
        )
    if not asks_experts(program):
        return None
    return (
        "the model asks experts of others: the prediction counts no time for their answers, for which a stage waits"
        " twice a micro-batch (`experts` in metrics.jsonl and the run's page tell how long)"
    )


def open_experts(table: ExpertsTableConfig | None, programs: Iterable[StageProgram], job_file: str | Path) -> None:
    """Open a client for each grid that the programs ask and that this process does not ask yet, and wait for a first
    expert of each. `close_experts` closes them.

    Raises InvalidInput for a job that does not say where the experts are, and for a token file that cannot be read;
    TableUnreachable where no peer answers, ExpertsUnavailable where no expert can be called within `wait_s`.
    """
    programs = list(programs)
    for program in programs:
        check_experts(table, program, job_file)
    _open(table, {text for program in programs for text in _grids_of(program)}, job_file)


@contextmanager
def experts_open(
    table: ExpertsTableConfig | None, asked_by: Iterable[StageProgram] | nn.Module, job_file: str | Path
) -> Iterator[None]:
    """Inside, the experts that programs or a whole model ask can be asked. Raises as `open_experts` does."""
    try:
        if isinstance(asked_by, nn.Module):
            _open(table, _grids_of_model(asked_by) if table is not None else (), job_file)
        else:
            open_experts(table, asked_by, job_file)
        yield
    finally:
        if table is not None:
            close_experts()


def _open(table: ExpertsTableConfig | None, described: Collection[str], job_file: str | Path) -> None:
    """Open a client for each of these grids (text as askers.text_of gives it)."""
    if table is None or not described:
        return
    from ravnest.experts import ExpertsClient, shared_token
    from ravnest.experts.askers import config_from, open_grid, opened_grids, text_of
    from ravnest.experts.batch_calls import Asker

    with _opening:
        for text in sorted(described):
            config = config_from(text)
            known = opened_grids().get(config.name)
            if known is not None and text_of(known.caller.config) != text:
                message = f"two layers describe the experts of {config.name!r} differently"
                raise InvalidInput(message, path=str(job_file), key="model", hint="give each grid a name of its own")
            if known is not None:
                continue
            host = own_address(table.peers)
            with naming(job_file, "experts.token_file"):
                token = shared_token(_token_file(table, job_file), host, config.name)
            with naming(job_file, "experts.peers"):
                client = ExpertsClient.opened(config, table.peers, token=token, host=host, label="stage")
            try:
                client.wait_for_experts(1, table.wait_s)
                open_grid(config.name, Asker(client, most_silent=MOST_SILENT))
            except BaseException:
                client.close()
                raise


def close_experts() -> None:
    """Close what `open_experts` has opened in this process."""
    from ravnest.experts import ExpertsClient
    from ravnest.experts.askers import close_grids

    for asker in close_grids().values():
        if isinstance(asker.caller, ExpertsClient):
            asker.caller.close()


@dataclass(frozen=True)
class HostSeen:
    """A host of experts, as the table and this process's calls show it. answer_s: until an answer is back here; before
    the first one, what the host itself says."""

    experts: int
    most_experts: int
    samples_per_s: float
    answer_s: float
    updates: int


@dataclass(frozen=True)
class GridAsked:
    """What this process has asked of a grid since it began, and who hosts its experts now."""

    grid: str
    places: int
    batches: int
    waited_s: float
    requests: int
    dropped: int
    hosts: Mapping[str, HostSeen]


def grids_asked(table: ExpertsTableConfig | None) -> list[GridAsked]:
    """The grids that this process asks."""
    if table is None:
        return []
    from ravnest.experts import ExpertsClient
    from ravnest.experts.askers import opened_grids

    found = []
    for name, asker in opened_grids().items():
        figures, caller = asker.figures, asker.caller
        hosts: dict[str, HostSeen] = {}
        if isinstance(caller, ExpertsClient):
            times = caller.answer_times()
            for news in caller.directory.news:
                own_s, member = times.get(news.at.member), news.at.member
                answer_s = news.answer_s if own_s is None else own_s
                hosts[member] = HostSeen(news.experts, news.most_experts, news.samples_per_s, answer_s, news.updates)
        requests, dropped = figures.forwards + figures.backwards, sum(figures.dropped.values())
        places = len(caller.config.places)
        found.append(GridAsked(name, places, figures.batches, figures.waited_s, requests, dropped, hosts))
    return found


def own_address(peers: Sequence[str]) -> str:
    """This machine's address on the way to the first peer, "HOST:PORT", to which it has one: a peer may be gone.

    Nothing is sent. Raises InvalidInput.
    """
    wrong: InvalidInput | None = None
    for peer in peers:
        host, _, port = peer.rpartition(":")
        try:
            found = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_DGRAM)
            family, kind, protocol, _, address = found[0]
            with socket.socket(family, kind, protocol) as probe:
                probe.connect(address)
                return str(probe.getsockname()[0])
        except (OSError, ValueError) as error:
            wrong = InvalidInput(f"expected HOST:PORT, which can be reached, not {peer!r}: {error}", key="peers")
    raise wrong or InvalidInput("expected the address of a node of the table, as HOST:PORT", key="peers")


def _token_file(table: ExpertsTableConfig, job_file: str | Path) -> Path | None:
    if table.token_file is None:
        return None
    path = Path(job_file).parent / Path(table.token_file).expanduser()
    if not path.is_file():  # shared_token would make one, which nobody else has
        raise InvalidInput(f"there is no file {path}: copy the experts' token to this machine")
    return path


def _grids_of_model(model: nn.Module) -> set[str]:
    from ravnest.experts import RemoteMixtureOfExperts
    from ravnest.experts.askers import text_of

    return {text_of(layer.config) for layer in model.modules() if isinstance(layer, RemoteMixtureOfExperts)}


def _grids_of(program: StageProgram) -> set[str]:
    """The descriptions of the grids that a program asks."""
    return {
        str(operation.args[CONFIG_PLACE])
        for code in (program.train, program.evaluate)
        for operation in code.operations
        if operation.target == ASK
    }
