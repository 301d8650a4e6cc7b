from ravnest.stage import messages as m
from ravnest.stage.reports import COMPUTE, NETWORK, PIECE, Timeline, lane_of, subject


def test_spans_go_to_the_driver_in_pieces_and_are_then_forgotten() -> None:
    timeline = Timeline()
    for number in range(PIECE):
        assert not timeline.has_piece
        timeline.computed("forward", number, float(number), number + 0.5)
    assert timeline.has_piece
    timeline.add(NETWORK, "send activation", 0, 1.0, 1.25)
    whole, rest = timeline.pieces()
    assert whole.numbers == tuple(range(PIECE))
    assert set(whole.lanes) == {COMPUTE}
    assert rest == m.Spans(
        lanes=(NETWORK,), kinds=("send activation",), numbers=(0,), began_s=(1.0,), ended_s=(1.25,), dropped=0
    )
    assert timeline.pieces() == []


def test_a_piece_fits_into_a_control_message() -> None:
    timeline = Timeline()
    for number in range(PIECE):
        timeline.add(NETWORK, "receive activation", 10**6 + number, 1e5 + number, 1e5 + number + 0.5)
    (piece,) = timeline.pieces()
    codec = m.codec()
    encoded = codec.encode(piece)
    assert len(encoded) < 50_000
    assert codec.decode(encoded) == piece


def test_beyond_the_limit_spans_are_only_counted() -> None:
    timeline = Timeline(limit=2)
    for number in range(5):
        timeline.computed("forward", number, 0.0, 1.0)
    (piece,) = timeline.pieces()
    assert (piece.numbers, piece.dropped) == ((0, 1), 3)


def test_a_round_in_a_rings_lane_changes_until_it_is_over() -> None:
    timeline = Timeline()
    timeline.change(4, 1, "in flight", 1.0)
    timeline.change(4, 2, "in flight", 2.0)  # with a lag of two, rounds overlap
    timeline.change(4, 1, "finished", 3.0)
    timeline.change(4, 1, None, 4.0)
    timeline.change(4, 9, None, 5.0)  # never seen: nothing to end
    (piece,) = timeline.pieces()
    assert set(piece.lanes) == {lane_of(4)}
    spans = list(zip(piece.kinds, piece.numbers, piece.began_s, piece.ended_s, strict=True))
    assert spans == [("in flight", 1, 1.0, 3.0), ("finished", 1, 3.0, 4.0)]


def test_what_is_drawn_of_the_network() -> None:
    assert subject(m.Activation(micro_batch=3)) == ("activation", 3)
    assert subject(m.Gradient(micro_batch=4)) == ("gradient", 4)
    assert subject(m.GlobalNorm(update=5, norm_sq=1.0)) == ("norm", 5)
    assert subject(m.EvaluationActivation(evaluation=1, batch=6, batches=9)) == ("evaluation", 6)
    assert subject(m.TiedWeights(version=7, names=("w",))) == ("tied weights", 7)
    assert subject(m.TiedGradients(update=8, names=("w",))) == ("tied gradients", 8)
    assert subject(m.Alive()) is None
