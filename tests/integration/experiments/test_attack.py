"""`python -m experiments.attack --quick`: its parts work, and what does not depend on speed holds.

The part `fuzz` is left out: `make fuzz` and tests/fuzz try the same readers.
"""

import socket
import threading
import time
from pathlib import Path

import pytest

from experiments.attack import liars
from experiments.attack.__main__ import PARTS, main
from experiments.attack.strangers import GREETING, recorded
from experiments.wire import averaging
from tests.support.experiments import check_form, claims_of, run_quick

QUICK = [part for part in PARTS if part != "fuzz"]


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_each_part_runs_and_no_stage_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (averaging, liars):
        monkeypatch.setattr(module, "ROUND_UPDATES", 2)
    document = run_quick(main, tmp_path, "--only", *QUICK)
    check_form(document, "attack", QUICK)
    attacked = claims_of(document["parts"]["attack"])
    assert attacked["lost"]["held"]
    assert attacked["memory"]["held"]
    phases, strangers = (table["rows"] for table in document["parts"]["attack"]["tables"])
    assert [row[1] for row in phases] == ["no", "yes"]
    assert all(row[2] > 0 for row in phases)
    assert len(strangers) == 7
    assert all(count > 0 for _, count in strangers)
    assert all(claims_of(document["parts"][part])["nobody honest"]["held"] for part in ("liars", "digits"))
    rates = [row[1:3] for row in document["parts"]["encryption"]["tables"][0]["rows"]]
    assert all(clear > 0 and encrypted > 0 for clear, encrypted in rates)


@pytest.mark.parametrize("minutes", ["0", "-1", "nan", "1e9"])
def test_an_attack_lasts_some_minutes(minutes: str) -> None:
    with pytest.raises(SystemExit):
        main(["--minutes", minutes])


def test_a_handshake_is_recorded_however_late_it_is_answered() -> None:
    """As on a machine that has much else to do."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer_late() -> None:
            there, _ = listening.accept()
            with there:
                time.sleep(1.5)
                there.sendall(GREETING[:32] + b"\x01" + GREETING[33:])  # of a server
                while len(there.recv(65536)) <= 64:
                    pass  # the handshake comes after the greeting

        late = threading.Thread(target=answer_late, daemon=True)
        late.start()
        said = recorded(listening.getsockname()[1])
        late.join()
    assert said.startswith(GREETING[:1])
    assert len(said) > len(GREETING)
