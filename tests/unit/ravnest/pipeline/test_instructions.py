import pytest

from ravnest.pipeline import instructions as ins
from ravnest.pipeline.instructions import format_trace, parse, parse_trace

EVERY_FORM = {
    "F12": ins.RunForward(12),
    "B12": ins.RunBackward(12),
    "I12": ins.RunInputGradients(12),
    "W12": ins.RunWeightGradients(12),
    "U3": ins.RunUpdate(3),
    "U3|0.25": ins.RunUpdate(3, 0.25),
    "SNAP2": ins.TakeSnapshot(2),
    "M2": ins.ApplyMerge(2),
    "E1.4": ins.RunEvaluation(1, 4),
    "SA12": ins.SendActivation(12),
    "SG12": ins.SendGradient(12),
    "SG12@r2": ins.SendGradient(12, 2),
    "SG12|0.5": ins.SendGradient(12, None, 0.5),
    "SG12@r2|1e-05": ins.SendGradient(12, 2, 1e-05),
    "SN3|inf": ins.SendGlobalNorm(3, float("inf")),
    "SE1.4/32": ins.SendEvaluation(1, 4, 32),
    "CE1.4": ins.CreditEvaluation(1, 4),
    "RE1": ins.ReportEvaluation(1),
    "RD24/3": ins.ReportDrained(24, 3),
    "RR5": ins.ReportRoundsFinished(5),
    'FAIL"why \\"not\\""': ins.Fail('why "not"'),
}


@pytest.mark.parametrize("word", EVERY_FORM)
def test_prints_and_parses_back(word: str) -> None:
    assert str(EVERY_FORM[word]) == word
    assert parse(word) == EVERY_FORM[word]


def test_every_instruction_has_a_form() -> None:
    kinds = {type(instruction) for instruction in EVERY_FORM.values()}
    assert kinds == set(ins.Instruction.__args__)


def test_a_trace_is_one_string() -> None:
    assert format_trace(parse_trace("  ".join(EVERY_FORM))) == " ".join(EVERY_FORM)


@pytest.mark.parametrize("word", ["", "F", "X1", "F-1", "F1x", "SN3", "SE1.4", "SG1@2", "U3|", "FAILwhy"])
def test_refuses_what_is_no_instruction(word: str) -> None:
    with pytest.raises(ValueError, match="not an instruction"):
        parse(word)
