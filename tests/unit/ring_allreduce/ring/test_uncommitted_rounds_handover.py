"""Averages that are handed on: in pieces, from one holder, whole or not at all."""

import torch

from ring_allreduce.ring.uncommitted_rounds import Handovers, RingResult, pieces
from tests.unit.ring_allreduce.fleet import spec

WHOLE = RingResult("r", 3, torch.arange(20.0), 5.0, (7,))


def test_pieces_are_views_of_the_average_and_make_it_whole_in_any_order():
    ring, handovers = spec(elements=20, chunk=6), Handovers()
    sent = list(pieces(WHOLE, 6))
    assert all(span.data_ptr() == WHOLE.average[piece.start :].data_ptr() for piece, span in sent)
    assert handovers.expect(ring, 3, "b") is None
    results = [handovers.take(ring, "b", piece, span) for piece, span in reversed(sent)]
    assert [new for new, _ in results] == [True] * 4
    assert [result for _, result in results[:-1]] == [None] * 3
    result = results[-1][1]
    assert torch.equal(result.average, WHOLE.average)
    assert (result.ring, result.round, result.total_weight, result.counters) == ("r", 3, 5.0, (7,))


def test_an_empty_average_is_one_piece():
    empty = RingResult("r", 1, torch.empty(0), 0.0, ())
    ((piece, span),) = pieces(empty, 6)
    handovers = Handovers()
    handovers.expect(spec(elements=0), 1, "b")
    new, result = handovers.take(spec(elements=0), "b", piece, span)
    assert new
    assert result.average.numel() == 0


def test_early_pieces_of_the_named_holder_count():
    ring, handovers = spec(elements=20, chunk=6), Handovers()
    for piece, span in pieces(WHOLE, 6):
        assert handovers.why_not(ring, "b", piece) is None
        new, result = handovers.take(ring, "b", piece, span)
        assert new
        assert result is None, "nobody has named the holder"
    assert torch.equal(handovers.expect(ring, 3, "b").average, WHOLE.average)
    assert handovers.why_not(ring, "c", next(pieces(WHOLE, 6))[0]) == "this member takes the average from 'b'"
    assert handovers.keys() == {("r", 3)}
    handovers.forget(("r", 3))
    assert handovers.keys() == set()
    assert handovers.awaited() == []


def test_what_nobody_asked_for_takes_the_memory_of_one_average():
    ring, handovers = spec(elements=20, chunk=6), Handovers()
    first, second = list(pieces(WHOLE, 6))[:2]
    handovers.take(ring, "b", *first)
    refused = "another has handed on that average before it was asked for"
    assert handovers.why_not(ring, "c", first[0]) == refused
    assert handovers.why_not(ring, "b", second[0]) is None
    assert handovers.expect(ring, 3, "c") is None, "who was to do it may, from now on"
    assert handovers.why_not(ring, "c", first[0]) is None
    assert handovers.why_not(ring, "b", second[0]) == "this member takes the average from 'c'"
