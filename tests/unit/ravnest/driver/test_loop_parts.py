"""Where the driver listens."""

import pytest

from ravnest.driver import loop_parts
from ravnest.driver.loop_parts import driver_endpoint
from ravnest.errors import InvalidInput
from ring_allreduce import TransportError
from tests.support.local import setups_of, tiny_job


def test_an_address_of_another_machine_is_told_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, host: str, **__: object) -> None:
        raise TransportError(f"cannot listen on {host!r}: Cannot assign requested address")

    monkeypatch.setattr(loop_parts, "ZmqEndpoint", refused)
    (setup,) = setups_of(tiny_job(), parts=(1,))[0].values()
    with pytest.raises(InvalidInput, match=r"--address: cannot listen on '192\.0\.2\.7'.*by which Ray knows") as caught:
        driver_endpoint(setup, "192.0.2.7", None)
    assert "ray start" in (caught.value.hint or "")
