import torch

from ravnest.experts.claims import Kept
from ravnest.experts.grid import Expert
from ravnest.experts.kept_copies import KeptCopies

A, B, C = (0, 0), (0, 1), (1, 0)


def state(numbers: int = 2, value: float = 0.0) -> dict[str, torch.Tensor]:
    return {"weights.w": torch.full((numbers,), value)}


def everything(_: Expert) -> bool:
    return True


def test_the_newest_copy_of_an_expert_is_kept() -> None:
    copies = KeptCopies(2, 100)
    assert copies.keep(A, state(value=1.0), Kept(1, 5), everything)
    assert copies.keep(A, state(value=2.0), Kept(1, 4), everything)  # a newer one is here
    assert copies.kept == {A: Kept(1, 5)}
    assert float(copies.state(A)[0]["weights.w"][0]) == 1.0
    assert copies.keep(A, state(value=3.0), Kept(2, 0), everything)
    assert copies.kept == {A: Kept(2, 0)}
    assert float(copies.state(A)[0]["weights.w"][0]) == 3.0
    copies.drop(A)
    copies.drop(A)
    assert A not in copies


def test_a_copy_is_bounded_in_bytes() -> None:
    copies = KeptCopies(2, 8)
    assert copies.keep(A, state(2), Kept(1, 1), everything)
    assert not copies.keep(B, state(3), Kept(1, 1), everything)
    assert not copies.keep(A, state(3), Kept(1, 2), everything)
    assert copies.kept == {A: Kept(1, 1)}


def test_where_there_is_no_room_only_what_is_no_longer_for_here_gives_way() -> None:
    copies = KeptCopies(2, 8)
    for expert in (A, B):
        assert copies.keep(expert, state(), Kept(1, 1), everything)
    assert not copies.keep(C, state(), Kept(1, 1), everything)
    assert copies.keep(A, state(), Kept(1, 2), everything)  # takes no more room than before
    assert copies.keep(C, state(), Kept(1, 1), lambda expert: expert != B)
    assert set(copies.kept) == {A, C}
