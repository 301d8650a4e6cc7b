"""Seconds per averaging of 4, 8 and 16 peers on this machine: hivemind 1.1.12 beside a backbone with volunteers.

Every peer is a program of its own, on loopback, and connections are encrypted on both sides, as they are by default.
All average a million numbers, again and again, in turn for each size and form; the first averagings are not counted.
hivemind's peers (DecentralizedAverager, its own defaults but for the group's size and the form) do nothing else: an
averaging lasts from the word to begin, which all are given at once, to the last peer's average. It finds its group
anew each time, in a hash table, and each peer adds up a part of the vector. It has failed if any peer has an error or
a mean of fewer than all. ravnest's volunteers train: an averaging is a whole step, from one mean that the backbone has
made to the next, with the gradients of two micro-batches of one sample and the optimizer's step at everyone. The
backbone, a program more, adds all up. A step has failed if a volunteer that had joined is missing in it.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.harness.report import ROOT, Claim, Part, Table, median

SIDE = 1000
"""The model is one matrix of so many rows and columns."""

PEERS, QUICK_PEERS = (4, 8, 16), (2,)
FORMS = ("float32", "float16")
ROUNDS, WARM = 20, 3
WARM_STEPS = 30
"""Of ours: a volunteer's rate is smoothed over micro-batches, and the first one has waited for the last joiner."""

SAID = 400
"""So many characters of what a program said last are shown where one has failed."""

START_S, ROUND_S, WHOLE_S = 240.0, 120.0, 900.0
"""So long may peers take until all are there, one averaging, and all of them."""

CODE = """
import os
import time
from pathlib import Path

import torch


class Rows(torch.utils.data.Dataset):
    def __init__(self) -> None:
        self.inputs = torch.randn(256, {side}, generator=torch.Generator().manual_seed(0))
        self.gate = os.environ.get("GATE")

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int):
        if self.gate is not None:  # a volunteer that has joined: none begins before all have
            Path(self.gate, str(os.getpid())).touch()
            while not Path(self.gate, "open").exists():
                time.sleep(0.02)
            self.gate = None
        time.sleep({sample_s})
        return self.inputs[index], index % {side}


class Data:
    def __init__(self) -> None:
        self.train = self.held_out = Rows()


def model() -> torch.nn.Module:
    return torch.nn.Linear({side}, {side}, bias=False)
"""

JOB = """
mode: collaborative
target_batch: {target}
model: {{factory: beside:model}}
data: {{factory: beside:Data}}
micro_batch: 1
optimizer: {{name: sgd, lr: 1.0e-3}}
averaging: {{wire: {form}}}
stop: {{samples: {samples}}}
evaluate_every: {samples}
"""


@dataclass(frozen=True)
class Averagings:
    """What one program did with so many peers: seconds of the averagings that succeeded, and how many did not."""

    seconds: Sequence[float]
    failed: int
    why: str = ""
    """What was said of the first failure."""


@dataclass(frozen=True)
class Place:
    """Where programs run: on this machine's loopback, or each inside a network namespace."""

    inside: Callable[[str], Sequence[str]] = lambda _: ()
    """The words in front of a command that is to run as that node."""
    backbone: str = ""
    volunteers: Sequence[str] = ()
    listen: str = "127.0.0.1:0"
    stands_by: tuple[str, str] | None = None
    """The node of a second backbone machine, which adds up a share, and where it listens."""
    link_mbit: float | None = None
    """The links of both."""


LOOPBACK = Place()


def measure(*, quick: bool, hivemind: Path | None) -> Part:
    """Both in turn. `hivemind`: the Python of an environment that has hivemind 1.1.12; without it ours alone runs."""
    sizes, rounds, side = (QUICK_PEERS, 3, 32) if quick else (PEERS, ROUNDS, SIDE)
    ours: dict[tuple[int, str], Averagings] = {}
    theirs: dict[tuple[int, str], Averagings] = {}
    for peers in sizes:
        for form in FORMS[-1:] if quick else FORMS:
            with tempfile.TemporaryDirectory() as folder:
                ours[peers, form] = collaboration(Path(folder), peers, form, rounds, side)
            if hivemind is not None:
                theirs[peers, form] = averagers(hivemind, peers, form, rounds, side * side)
    return part(ours, theirs, rounds, side * side)


def collaboration(
    folder: Path,
    peers: int,
    form: str,
    rounds: int,
    side: int,
    *,
    place: Place = LOOPBACK,
    delayed: bool = False,
    warm: int = WARM_STEPS,
    sample_s: float = 0.0,
) -> Averagings:
    """A backbone and so many volunteers. Raises RuntimeError where they do not come to their end.

    `sample_s`: how long everyone takes for a sample, beside what this machine's processor needs.
    """
    job, gate, out = folder / "job", folder / "gate", folder / "out"
    for made in (job, gate):
        made.mkdir()
    (job / "beside.py").write_text(CODE.format(side=side, sample_s=sample_s))
    target = 2 * peers
    samples = target * (rounds + warm)
    text = JOB.format(target=target, form=form, samples=samples)
    (job / "job.yaml").write_text(text + "delayed_step: true\n" * delayed)
    with _Programs() as programs:

        def run(node: str, *arguments: str, name: str, gate: Path | None = None) -> subprocess.Popen[str]:
            command = [*place.inside(node), sys.executable, "-m", "ravnest", "collaborate", *arguments]
            return programs.start(command, name=name, home=folder, gate=gate)

        def serve(node: str, listen: str, out: Path, *more: str) -> subprocess.Popen[str]:
            asked = ("--listen", listen, "--out", str(out), *more)
            return run(node, "start", str(job / "job.yaml"), *asked, name=out.name)

        link = () if place.link_mbit is None else ("--link-mbit", str(place.link_mbit))
        other = () if place.stands_by is None else ("--address", place.listen, "--other", place.stands_by[1])
        backbones = [serve(place.backbone, place.listen, out, *link, *other)]
        programs.until((out / "invitation.txt").exists, START_S)
        if place.stands_by is not None:
            beside = folder / "beside"
            beside.mkdir()
            (beside / "keys.json").write_bytes((out / "keys.json").read_bytes())
            other = ("--address", place.stands_by[1], "--other", place.listen)
            backbones.append(serve(*place.stands_by, beside, *link, *other, "--resume"))
            programs.until(lambda: "stands by with" in programs.said_by(beside.name), START_S)
        volunteers = []
        for at in range(peers):
            name = f"v{at}"
            how = ("--name", name, "--yes", "--threads", "1", "--key-file", str(folder / f"{name}.key"))
            node = place.volunteers[at] if place.volunteers else ""
            volunteers.append(run(node, "join", str(out / "invitation.txt"), *how, name=name, gate=gate))
        programs.until(lambda: len(list(gate.iterdir())) == peers, START_S)
        (gate / "open").touch()
        programs.until(lambda: backbones[0].poll() is not None, WHOLE_S)
        programs.until(lambda: all(one.poll() is not None for one in (*backbones, *volunteers)), START_S)
        if any(one.returncode for one in (*backbones, *volunteers)):
            raise RuntimeError(f"a collaboration of {peers} volunteers ended with {programs.said()}")
    steps = [entry for entry in map(json.loads, (out / "curve.jsonl").read_text().splitlines()) if "samples" in entry]
    return of_steps(steps, peers, rounds)


def of_steps(steps: Sequence[dict[str, Any]], peers: int, rounds: int) -> Averagings:
    """The last so many steps, in all of which everyone should have taken part."""
    last = steps[-rounds:]
    whole = [float(step["seconds"]) for step in last if step["peers"] == peers]
    short = [f"step {step['step']}: {step['peers']} of {peers} volunteers" for step in last if step["peers"] != peers]
    return Averagings(whole, len(short), *short[:1])


def averagers(python: Path, peers: int, form: str, rounds: int, numbers: int) -> Averagings:
    """So many averagers of hivemind. Raises RuntimeError where they do not start."""
    script = str(Path(__file__).with_name("hivemind_averager.py"))
    with _Programs() as programs:
        addresses: list[str] = []
        started = []
        for place in range(peers):
            asked = [str(place), str(peers), str(numbers), form, *addresses]
            started.append(programs.start([str(python), script], *asked, name=f"averager {place}", home=None))
            if not place:
                addresses = programs.answer(started[0], START_S)["addresses"]
        for one in started[1:]:
            programs.answer(one, START_S)
        seconds: list[float] = []
        failures: list[str] = []
        for number in range(WARM + rounds):
            began_s = time.perf_counter()
            for one in started:
                programs.say(one)
            answers = [programs.answer(one, ROUND_S) for one in started]
            took_s = time.perf_counter() - began_s
            if number < WARM:
                continue
            why = failure(answers, peers)
            if why is None:
                seconds.append(took_s)
            else:
                failures.append(f"{why}, after {took_s:.1f} s")
    return Averagings(seconds, len(failures), *failures[:1])


def failure(answers: Sequence[dict[str, Any]], peers: int) -> str | None:
    """What was wrong with an averaging of hivemind's: None where each peer has the mean of all."""
    for answer in answers:
        if answer["together"] != peers:
            return str(answer.get("error") or f"a group of {answer['together']} of {peers}")
        if answer["off"] > 0.01 * peers:
            return f"a number is off the mean by {answer['off']:.3g}"
    return None


class _Programs:
    """Programs that are started, asked and, whatever happens, ended."""

    def __init__(self) -> None:
        self._started: list[subprocess.Popen[str]] = []
        self._names: list[str] = []
        self._folder = tempfile.TemporaryDirectory()

    def __enter__(self) -> "_Programs":
        return self

    def __exit__(self, *_: object) -> None:
        for one in self._started:
            if one.poll() is None:
                _end(one, signal.SIGTERM)
        for one in self._started:
            with suppress(subprocess.TimeoutExpired):
                one.wait(10)
            _end(one, signal.SIGKILL)  # and what it has left behind
            one.wait(20)
        self._folder.cleanup()

    def start(
        self, command: Sequence[str], *arguments: str, name: str, home: Path | None, gate: Path | None = None
    ) -> subprocess.Popen[str]:
        """`name`: no other program has it. `home`: of a program of ravnest; None: one of hivemind's, which answers."""
        environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "GATE")}
        environment |= {"OMP_NUM_THREADS": "1"}
        if home is not None:
            environment |= {"HOME": str(home), "PYTHONPATH": str(ROOT)}
        if gate is not None:
            environment["GATE"] = str(gate)
        with self._said_by(name).open("w") as said:
            program = subprocess.Popen(
                [*command, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE if home is None else said,
                stderr=said,
                text=True,
                env=environment,
                start_new_session=True,  # hivemind's have daemons, which end with their group
            )
        self._started.append(program)
        self._names.append(name)
        return program

    def until(self, holds: Callable[[], bool], deadline_s: float) -> None:
        """Wait for something. Raises RuntimeError when it does not come, or when a program has failed."""
        ends_s = time.monotonic() + deadline_s
        while not holds():
            failed = [one for one in self._started if one.poll()]
            if failed or time.monotonic() > ends_s:
                raise RuntimeError(f"programs did not do their part within {deadline_s:.0f} s: {self.said()}")
            time.sleep(0.05)

    def say(self, program: subprocess.Popen[str]) -> None:
        """The word to average."""
        assert program.stdin is not None
        program.stdin.write("average\n")
        program.stdin.flush()

    def answer(self, program: subprocess.Popen[str], deadline_s: float) -> dict[str, Any]:
        """The next line that it says. Raises RuntimeError when it says none in time."""
        assert program.stdout is not None
        watch = threading.Timer(deadline_s, _end, (program, signal.SIGKILL))
        watch.start()
        try:
            line = program.stdout.readline()
        finally:
            watch.cancel()
        if not line:
            raise RuntimeError(f"an averager ended, or was silent for {deadline_s:.0f} s: {self.said()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def said(self) -> str:
        """The last that was said to nobody by those that have failed; if none has, by those that have not ended."""
        named = list(zip(self._names, self._started, strict=True))
        asked = [name for name, one in named if one.poll()] or [name for name, one in named if one.poll() is None]
        return "; ".join(f"{name}: {self.said_by(name)[-SAID:]}" for name in asked)

    def said_by(self, name: str) -> str:
        """All that one of them has said to nobody."""
        return self._said_by(name).read_text(errors="replace")

    def _said_by(self, name: str) -> Path:
        return Path(self._folder.name, name)


def _end(program: subprocess.Popen[str], how: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.killpg(program.pid, how)


def part(
    ours: dict[tuple[int, str], Averagings], theirs: dict[tuple[int, str], Averagings], rounds: int, numbers: int
) -> Part:
    """What was found, by peers and form. `theirs` may be empty."""
    rows = []
    for (peers, form), own in ours.items():
        for program, found in (("ravnest", own), ("hivemind 1.1.12", theirs.get((peers, form)))):
            if found is not None:
                middle = round(median(found.seconds), 3) if found.seconds else None
                most = round(max(found.seconds), 3) if found.seconds else None
                rows.append((peers, form, program, middle, most, found.failed, found.why))
    failed = sum(one.failed for one in ours.values())
    ratios = [
        median(theirs[key].seconds) / median(ours[key].seconds)
        for key in theirs
        if theirs[key].seconds and ours[key].seconds
    ]
    return Part(
        name="hivemind",
        title="Averaging beside hivemind",
        claims=[
            Claim(
                "none failed",
                "steps of ours without all volunteers, of all",
                "0",
                f"{failed} of {rounds * len(ours)}",
                failed == 0,
            ),
            Claim(
                "hivemind",
                "hivemind's median seconds to ours, lowest of all sizes and forms",
                "at least 1",
                f"{min(ratios):.2f}" if ratios else "not measured: no --hivemind",
                min(ratios) >= 1 if ratios and numbers == SIDE**2 else None,
            ),
        ],
        tables=[
            Table(
                f"{rounds} averagings of {numbers:,} numbers",
                ("peers", "form", "program", "median s", "most s", "failed", "the first failure"),
                rows,
            )
        ],
        notes=[" ".join((__doc__ or "").split("\n\n")[1].split())],
    )
