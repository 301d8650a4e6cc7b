from ravnest.experts.sent_copies import COPY_S, REFUSED_S, SentCopies

EXPERT = (0, 1)


def test_a_copy_is_due_for_updates_for_another_stand_by_and_until_it_is_confirmed() -> None:
    copies = SentCopies()
    assert copies.is_due(EXPERT, "attic", 3, 0.0)
    copies.sent(EXPERT, "attic", 3, 0.0)
    assert not copies.is_due(EXPERT, "attic", 3, COPY_S - 1.0)
    assert copies.is_due(EXPERT, "attic", 3, COPY_S)
    copies.kept(EXPERT, "attic", 3)
    assert not copies.is_due(EXPERT, "attic", 3, 10 * COPY_S)
    assert copies.is_due(EXPERT, "attic", 4, 1.0)
    assert copies.is_due(EXPERT, "shed", 3, 1.0)  # the attic has died: nobody else has a copy
    copies.forget(EXPERT)
    assert copies.is_due(EXPERT, "attic", 3, 1.0)


def test_who_confirms_what_it_was_not_sent_changes_nothing() -> None:
    copies = SentCopies()
    copies.kept(EXPERT, "attic", 3)
    copies.sent(EXPERT, "attic", 3, 0.0)
    for by, updates in [("shed", 3), ("attic", 2)]:
        copies.kept(EXPERT, by, updates)
    assert copies.is_due(EXPERT, "attic", 3, COPY_S)


def test_who_had_no_room_is_left_out_for_a_while() -> None:
    copies = SentCopies()
    copies.sent(EXPERT, "attic", 3, 0.0)
    copies.refused(EXPERT, "attic", 1.0)
    assert copies.refusers(EXPERT, 1.0 + REFUSED_S / 2) == {"attic"}
    assert copies.is_due(EXPERT, "shed", 3, 2.0)
    assert copies.refusers(EXPERT, 1.0 + REFUSED_S) == set()
    copies.sent(EXPERT, "attic", 3, 100.0, reached=False)
    assert copies.refusers(EXPERT, 101.0) == {"attic"}
    copies.forget(EXPERT)
    assert copies.refusers(EXPERT, 101.0) == set()
