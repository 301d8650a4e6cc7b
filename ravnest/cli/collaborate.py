"""`ravnest collaborate`: a backbone that welcomes volunteers, a volunteer that joins it, and who has given how much.

In: the commands' options. Out: lines of text; a folder at the backbone. Everything else is `ravnest.collaboration`.
"""

from __future__ import annotations

import getpass
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ravnest.errors import InvalidInput
from ravnest.formatting import harmless

if TYPE_CHECKING:
    from ravnest.collaboration.invitation import Invitation
    from ravnest.collaboration.volunteer import MakeTrainer

PORT = 7800

collaborate = typer.Typer(no_args_is_help=True, help="Train with volunteers who come and go, in averaged steps.")


@collaborate.command(epilog="Example: ravnest collaborate start job.yaml --address home.example.net:7800")
def start(
    job: Annotated[Path, typer.Argument(metavar="JOB_YAML", help="A job with mode: collaborative.")],
    listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Where volunteers can connect; port 0 is any free one.")
    ] = f"0.0.0.0:{PORT}",
    address: Annotated[
        list[str] | None,
        typer.Option(metavar="HOST:PORT", help="Where volunteers find this machine; may be given several times."),
    ] = None,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where keys, states and the curve are kept.")] = Path(
        "runs/collaboration"
    ),
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the collaboration in --out.")] = False,
    other: Annotated[
        list[str] | None,
        typer.Option(
            metavar="HOST:PORT", help="Another backbone machine, with the same keys.json; one serves, others stand by."
        ),
    ] = None,
    link_mbit: Annotated[
        float | None,
        typer.Option(
            min=0.1, max=1e6, help="Of this machine's link, each way, in Mbit/s; without it, what is measured."
        ),
    ] = None,
) -> None:
    """Be the backbone of a collaboration until the job's end. Ctrl-C saves the state; --resume goes on from it."""
    import time

    from ravnest.checkpoints.run_lock import RunLock
    from ravnest.collaboration.backbone import Backbone
    from ravnest.collaboration.backbone_state import BackboneState
    from ravnest.collaboration.code_bundle import not_collected
    from ravnest.collaboration.invitation import endpoint
    from ravnest.collaboration.serving import serve_or_stand_by
    from ravnest.job.config import load_job

    if address is None and listen.startswith(("0.0.0.0:", "[::]:")):
        raise InvalidInput(
            "expected where volunteers find this machine, as HOST:PORT",
            key="--address",
            hint="its public address or name; to try it on one machine, --listen 127.0.0.1:7800 needs none",
        )
    for one in (*(address or ()), *(other or ())):
        endpoint(one)
    if other and not address:
        raise InvalidInput("expected beside --other: where the others find this machine, HOST:PORT", key="--address")

    def ready(backbone: Backbone) -> None:
        typer.echo(f"volunteers are sent {len(state.files)} files: {', '.join(state.files)}")
        if left := not_collected(job):
            typer.echo(f"they are not sent {', '.join(map(harmless, left))}: larger than 1 MiB, or no plain name")
        typer.echo(f"invitation: {backbone.invitation_file} (whoever has this line can join)")
        typer.echo(f"volunteers join by: ravnest collaborate join {backbone.invitation_file}")

    config = load_job(job)
    out.mkdir(parents=True, exist_ok=True)
    with _stopped_by_signals() as stop, RunLock(out):
        state = BackboneState(config, job, out, resume=resume, tell=_tell, now=time.monotonic)
        result = serve_or_stand_by(
            state,
            listen=listen,
            addresses=tuple(address or ()),
            others=tuple(other or ()),
            serves_first=not resume,
            bytes_per_s=(link_mbit or 0.0) * 1e6 / 8,
            stop=stop,
            ready=ready,
            tell=_tell,
        )
    if result.weights is None:
        typer.echo(f"stopped after {result.steps} steps; go on with --resume")
        raise typer.Exit(130)
    typer.echo(f"{result.steps} steps; weights: {result.weights} (hash {result.weights_hash[:16]})")


@collaborate.command(epilog="Example: ravnest collaborate join invitation.txt --name lena")
def join(
    invitation: Annotated[str, typer.Argument(help="The line that you were given, or a file that holds it.")],
    name: Annotated[str, typer.Option(help="Your name on the leaderboard.")] = "",
    yes: Annotated[bool, typer.Option("--yes", help="Agree to run the code without being asked.")] = False,
    key_file: Annotated[
        Path | None, typer.Option(help="Your key, by which samples are counted; made if there is none.")
    ] = None,
    moderators: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Public keys, one a line: run code that one of them has signed, and no other."
        ),
    ] = None,
    device: Annotated[str, typer.Option(help="Where to compute: cpu, cuda or mps.")] = "cpu",
    threads: Annotated[int | None, typer.Option(min=1, help="Processor threads; without it, what torch takes.")] = None,
    minutes: Annotated[float | None, typer.Option(min=0.0, help="Leave after so long; without it, at the end.")] = None,
    patience_minutes: Annotated[
        float, typer.Option(min=0.0, help="How long to try again while no backbone can be reached.")
    ] = 10.0,
    stages: Annotated[
        int | None,
        typer.Option(min=1, help="Cut the model into so many stages, for this machine and others of yours."),
    ] = None,
    listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="With --stages: where your other machines connect.")
    ] = "127.0.0.1:0",
    line_file: Annotated[
        Path, typer.Option(metavar="FILE", help="With --stages: where the line for your other machines is written.")
    ] = Path("lend.txt"),
) -> None:
    """Join a collaboration as a volunteer. Only connections outwards are opened, but for --stages. Ctrl-C leaves."""
    import time

    from ravnest.collaboration.invitation import read_invitation
    from ravnest.collaboration.sign_in import require_name
    from ravnest.collaboration.signatures import read_keyring
    from ravnest.collaboration.trainer import require_device
    from ravnest.collaboration.volunteer import Volunteer
    from ravnest.dht import new_identity, read_identity

    called = name or _user()
    require_name(called)
    require_device(device)
    if threads is not None:
        import torch

        torch.set_num_threads(threads)
    keyring = None if moderators is None else read_keyring(moderators)
    home = Path.home() / ".ravnest" / "collaborations"
    given = read_invitation(_line_of(invitation))
    key = key_file or home.parent / "volunteer.key"
    if not key.exists():
        key.parent.mkdir(parents=True, exist_ok=True)
        new_identity().write(key)
    ends_s = None if minutes is None else time.monotonic() + 60 * minutes
    with ExitStack() as held:
        stopped = held.enter_context(_stopped_by_signals())

        def stop() -> bool:
            return stopped() or (ends_s is not None and time.monotonic() > ends_s)

        make: MakeTrainer | None = None
        if stages is not None:
            asked = ["--device", device] if threads is None else ["--device", device, "--threads", str(threads)]
            make = held.enter_context(_trainer_of_stages(stages, listen, line_file, given, asked, stop))
        volunteer = Volunteer(
            given,
            read_identity(key),
            called,
            home,
            agree=lambda code, folder, files, signatures: (
                _agrees(code, folder, files, yes=yes) if keyring is None else is_signed(code, signatures, keyring)
            ),
            device=device,
            tell=_tell,
            patience_s=60 * patience_minutes,
            make=make,
        )
        done = volunteer.work(stop)
    weights = f"; weights' hash {done.weights[:16]}" if done.weights else ""
    typer.echo(f"sent {done.samples:,} samples in {done.steps} steps{done.in_words()}; thank you{weights}")


@collaborate.command(epilog="Example: ravnest collaborate lend lend.txt")
def lend(
    line: Annotated[str, typer.Argument(metavar="LINE", help="The line of `join --stages`, or a file that holds it.")],
    name: Annotated[str, typer.Option(help="What this machine is called.")] = "",
    yes: Annotated[bool, typer.Option("--yes", help="Agree to run the code without being asked.")] = False,
    device: Annotated[str, typer.Option(help="Where to compute: cpu, cuda or mps.")] = "cpu",
    threads: Annotated[int | None, typer.Option(min=1, help="Processor threads; without it, what torch takes.")] = None,
    patience_minutes: Annotated[
        float, typer.Option(min=0.0, help="How long to try again while the volunteer cannot be reached.")
    ] = 10.0,
) -> None:
    """Lend this machine to a volunteer of yours: it holds one stage of its model. Ctrl-C ends it."""
    import platform

    from ravnest.collaboration.invitation import read_invitation
    from ravnest.collaboration.lending import Lender

    if threads is not None:
        import torch

        torch.set_num_threads(threads)
    lender = Lender(
        read_invitation(_line_of(line)),
        name or platform.node()[:64] or "a machine",
        Path.home() / ".ravnest" / "collaborations",
        agree=lambda code, folder, files: _agrees(code, folder, files, yes=yes),
        device=device,
        tell=_tell,
        patience_s=60 * patience_minutes,
    )
    with _stopped_by_signals() as stop:
        lender.work(stop)
    typer.echo(f"computed {lender.micro_batches:,} micro-batches; thank you")


@collaborate.command(epilog="Example: ravnest collaborate sign job.yaml >> runs/collaboration/signatures.txt")
def sign(
    job: Annotated[Path, typer.Argument(metavar="JOB_YAML", help="The job whose folder you have read.")],
    key_file: Annotated[
        Path | None, typer.Option(help="Your key, in which volunteers trust; made if there is none.")
    ] = None,
) -> None:
    """Sign the code of a job as a moderator. The line goes to signatures.txt of the backbone's folder."""
    from ravnest.collaboration.code_bundle import code_hash, collected
    from ravnest.collaboration.signatures import signed
    from ravnest.dht import new_identity, read_identity

    if not job.is_file():
        raise InvalidInput("expected the job.yaml of a collaboration", path=str(job))
    key = key_file or Path.home() / ".ravnest" / "moderator.key"
    if not key.exists():
        key.parent.mkdir(parents=True, exist_ok=True)
        new_identity().write(key)
    identity = read_identity(key)
    code = code_hash(collected(job))
    typer.echo(f"public key: {identity.public_key.hex()}; code: {code}", err=True)
    typer.echo(signed(identity, code))


@collaborate.command(epilog="Example: ravnest collaborate people runs/collaboration")
def people(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The backbone's folder.")] = Path("runs/collaboration"),
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show who gave how many samples, by name and public key."""
    from ravnest.cli.views.members import show_people
    from ravnest.cli.views.tables import console
    from ravnest.collaboration.code_bundle import SECRETS_FILE
    from ravnest.collaboration.people import FILE, read_people

    if not any((folder / name).is_file() for name in (FILE, SECRETS_FILE)):
        raise InvalidInput("expected the folder of a collaboration", path=str(folder))
    found = read_people(folder)
    if as_json:
        typer.echo(found.text(), nl=False)
        return
    show_people(found.ranked(), console())


def _user() -> str:
    with suppress(ImportError, KeyError, OSError):  # in a container nobody may have given the user a name
        return getpass.getuser()
    return "a volunteer"


def _tell(line: str) -> None:
    """Print a line, some of which others may have said."""
    typer.echo(harmless(line))


def _line_of(invitation: str) -> str:
    """The line itself, or what the file holds that is named so. Raises InvalidInput."""
    begins = "ravnest-invitation"
    line = invitation.strip().strip("'\"")  # as it was copied from a message
    try:
        if not line.startswith(begins):
            line = Path(invitation).read_text(encoding="utf-8").strip().strip("'\"")
        if line.startswith(begins):
            return line
        why: str | None = f"it does not begin with {begins}"
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text"
    raise InvalidInput(
        f"expected an invitation, or a file that holds one: {why}",
        path=invitation,
        key="INVITATION",
        hint="`ravnest collaborate start` at the backbone prints where its invitation.txt is",
    )


def is_signed(code: str, signatures: tuple[bytes, ...], keyring: list[str]) -> bool:
    """Whether a moderator has signed the code; says who."""
    from ravnest.collaboration.signatures import signers

    found = signers(signatures, code, keyring)
    for key in found:
        typer.echo(f"code {code} is signed by {key}")
    if not found:
        typer.echo(f"code {code} is signed by none of your {len(keyring)} moderators: it is not run")
    return bool(found)


def _agrees(code: str, folder: Path, files: list[str], *, yes: bool) -> bool:
    """Show what will run, and ask once for each code: an answer of yes is kept beside its folder."""
    agreed = folder.with_suffix(".agreed")
    typer.echo(f"code: {code}")
    typer.echo(f"in {folder}: {', '.join(files)}")
    if agreed.exists():
        return True
    if not yes:
        before = signal.signal(signal.SIGINT, signal.default_int_handler)  # Ctrl-C is an answer, too
        try:
            if not typer.confirm("This code will run on your machine with your rights. Have you read it, and agree?"):
                return False
        except typer.Abort:
            if sys.stdin.isatty():
                raise
            raise InvalidInput("no answer can be read here", key="--yes", hint=f"read {folder} and add it") from None
        finally:
            signal.signal(signal.SIGINT, before)
    agreed.touch()
    return True


@contextmanager
def _trainer_of_stages(
    stages: int, listen: str, line_file: Path, given: Invitation, asked: list[str], stop: Callable[[], bool]
) -> Iterator[MakeTrainer]:
    """What makes the trainer of a volunteer whose model several machines hold, of which this is one.

    The line for the others, a secret of this volunteer's, is written to `line_file`. This machine's stage is held by a
    process of its own, with the options `asked`, once somebody has agreed to the code. Both are gone at the end.
    """
    from ravnest.collaboration.lent_machines import LentMachines
    from ravnest.collaboration.staged_trainer import StagedTrainer
    from ravnest.collaboration.trainer import Trainer
    from ravnest.job.config import load_job

    if listen.startswith(("0.0.0.0:", "[::]:")):
        raise InvalidInput(
            f"expected where your other machines find this one, not {listen}",
            key="--listen",
            hint="this machine's address in your network, such as 192.168.1.5:7801",
        )
    here: list[subprocess.Popen[bytes]] = []
    with LentMachines(stages, given.code_hash, listen=listen, tell=_tell, stop=stop) as machines:

        def make(job_file: Path, files: dict[str, bytes], order: str) -> Trainer:
            command = ["collaborate", "lend", str(line_file), "--yes", "--name", "this machine", *asked]
            here.append(subprocess.Popen([sys.executable, "-m", "ravnest", *command]))
            return StagedTrainer(load_job(job_file), job_file, machines, files, order=order)

        machines.given.write(line_file, "--line-file")
        try:
            typer.echo(f"on each of your other machines: ravnest collaborate lend {line_file} (bring the file there)")
            yield make
        finally:
            with suppress(OSError):  # its keys open nothing any more
                line_file.unlink()
            for process in here:
                process.terminate()
            for process in here:
                try:
                    process.wait(10.0)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()


@contextmanager
def _stopped_by_signals() -> Iterator[Callable[[], bool]]:
    """A function that says whether somebody has asked to stop: by Ctrl-C or SIGTERM. A second Ctrl-C interrupts."""
    asked = threading.Event()

    def ask(number: int, _: object) -> None:
        if asked.is_set() and number == signal.SIGINT:
            raise KeyboardInterrupt
        asked.set()

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield asked.is_set
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
