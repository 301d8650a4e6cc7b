import pytest

from ravnest.errors import InvalidInput
from ravnest.job.pretrained import Conventions, Form, match, match_with_loss

F32 = Form((2, 3), "F32")


def forms(*names, form=F32):
    return dict.fromkeys(names, form)


MODEL = forms("transformer.words", "transformer.block.norm", "transformer.block.up", "head.weight")
BASE = forms("words", "block.norm", "block.up")


def test_names_as_they_are():
    assert match(MODEL, MODEL) == {name: name for name in MODEL}


def test_a_base_model_s_checkpoint_starts_the_whole_model_and_the_other_way_round():
    found = match(MODEL, BASE, new=["head.*"])
    assert found == {f"transformer.{name}": name for name in BASE}
    assert match(BASE, MODEL, ignored=["head.weight"]) == {name: f"transformer.{name}" for name in BASE}


def test_what_is_missing_is_named_with_how_to_say_that_it_is_new():
    with pytest.raises(InvalidInput, match=r"^head\.weight: is missing\. .*initial_weights\.new"):
        match(MODEL, BASE)
    lacking = {name: form for name, form in BASE.items() if name != "block.up"}
    with pytest.raises(InvalidInput, match=r"^transformer\.block\.up: is missing; so are head\.weight\."):
        match(MODEL, lacking)


def test_many_missing_names_are_counted():
    wanted = forms(*(f"w{i}" for i in range(9)))
    with pytest.raises(InvalidInput, match=r"^w0: is missing; so are w1, w2, w3, w4, w5 and 3 more"):
        match(wanted, {})


def test_one_name_that_fits_with_a_prefix_proves_nothing():
    """The norm of a layer must not start a model's own norm."""
    with pytest.raises(InvalidInput, match=r"^norm: is missing"):
        match(forms("layer.up", "norm"), forms("layer.up", "layer.norm"))


def test_names_that_fit_in_two_ways_are_refused():
    with pytest.raises(InvalidInput, match=r"initial_weights: the names fit without 'left\.' or without 'right\.'"):
        match(forms("left.up", "left.down", "right.up", "right.down"), forms("up", "down"))


def test_what_is_left_over_is_named_unless_it_is_ignored_or_known_to_be():
    more = {**MODEL, **forms("transformer.block.attn.bias", "extra.a", "extra.b")}
    dropped = Conventions(dropped=(r"attn.bias",))
    with pytest.raises(InvalidInput, match=r"^extra\.a: is no weight of the model; so are extra\.b\. .*ignored"):
        match(MODEL, more, conventions=dropped)
    assert match(MODEL, more, ignored=["extra.*"], conventions=dropped) == {name: name for name in MODEL}


TIED = Conventions(same={"head.weight": ("transformer.words",), "transformer.words": ("head.weight",)})


def test_tied_weights_are_found_under_either_name_and_both_are_no_surplus():
    once = {name: form for name, form in MODEL.items() if name != "head.weight"}
    assert match(MODEL, once, conventions=TIED)["head.weight"] == "transformer.words"
    assert match(MODEL, BASE, conventions=TIED)["head.weight"] == "words"
    tied = {name: form for name, form in MODEL.items() if name != "head.weight"}
    assert match(tied, MODEL, conventions=TIED) == {name: name for name in tied}
    last = {name: form for name, form in MODEL.items() if name != "transformer.words"}
    assert match(tied, last, conventions=TIED)["transformer.words"] == "head.weight"


def test_another_shape_is_refused():
    with pytest.raises(InvalidInput, match=r"^words: has the shape \(3, 3\); the model's is \(2, 3\)"):
        match(MODEL, {**BASE, "words": Form((3, 3), "F32")}, new=["head.weight"])


@pytest.mark.parametrize(("stored", "wanted"), [("BF16", "F32"), ("F16", "F32"), ("F32", "F64"), ("I64", "I64")])
def test_narrower_floats_are_taken(stored, wanted):
    assert match(forms("w", form=Form((), wanted)), forms("w", form=Form((), stored))) == {"w": "w"}


@pytest.mark.parametrize(("stored", "wanted"), [("F32", "BF16"), ("F16", "BF16"), ("BF16", "F16"), ("I32", "I64")])
def test_what_would_lose_numbers_is_not(stored, wanted):
    with pytest.raises(InvalidInput, match=rf"^w: is {stored}; the model's {wanted} would not hold"):
        match(forms("w", form=Form((), wanted)), forms("w", form=Form((), stored)))


def test_a_pattern_of_no_weight_is_a_slip():
    with pytest.raises(InvalidInput, match=r"initial_weights\.new: no weight of the model is called 'haed\.\*'"):
        match(MODEL, MODEL, new=["haed.*"])


def test_weights_of_a_loss_are_stored_under_their_own_names_or_are_new():
    wanted, of_loss = MODEL | forms("loss.words", "loss.norm"), ["loss.words", "loss.norm"]
    assert match_with_loss(wanted, wanted, of_loss) == {name: name for name in wanted}
    found = match_with_loss(wanted, BASE, of_loss, new=["head.*", "loss.*"])
    assert found == {f"transformer.{name}": name for name in BASE}  # `words` is not taken for loss.words
    assert match_with_loss(wanted, BASE, of_loss, new=["*"]) == found
    with pytest.raises(InvalidInput, match=r"^loss\.words: is missing; so are loss\.norm\."):
        match_with_loss(wanted, MODEL, of_loss)
    with pytest.raises(InvalidInput, match=r"no weight of the model is called 'lost\.\*'"):
        match_with_loss(wanted, wanted, of_loss, new=["lost.*"])
