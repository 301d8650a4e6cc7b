"""The stand-in for Ray answers whatever ravnest asks of a session of Ray."""

from experiments.churn.faulted.in_namespaces import Session
from ravnest.driver.ray.session import RaySession


def _asked(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")}


def test_the_session_has_all_that_rays_has() -> None:
    assert _asked(RaySession) <= _asked(Session)


def test_no_machine_is_ever_about_to_go() -> None:
    session = Session(None)

    assert [node.alive for node in session.nodes()] == [True] * 4
    assert session.draining() == []
