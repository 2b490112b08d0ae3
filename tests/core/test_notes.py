"""Notes and details: how an implementation computes, in words."""

import pytest
from toy import Relu, registered, relu_op

import dnncore as dnn
from dnncore.backend import NOTES, Accepted

CPU = dnn.engine("cpu")


class Noted(Relu):
    """An implementation that would win, with notes."""

    def __init__(self, name, efficiency, **words):
        super().__init__(f"toybackend:{name}", efficiency)
        self.words = words

    def accept(self, op, attr, engine, hint):
        answer = super().accept(op, attr, engine, hint)
        assert isinstance(answer, Accepted)
        return Accepted(answer.op, answer.build, efficiency=answer.efficiency, **self.words)


@pytest.fixture
def noted():
    first = Noted("first", 99.0, notes=["library", "copies", "library"], detail="jit:any")
    with registered(first, Noted("second", 98.0, notes={"library"}), Noted("third", 97.0)):
        yield


def chosen(**wishes):
    return dnn.PrimitiveDesc(relu_op(), CPU, **wishes).impl_name


def test_a_descriptor_has_notes_and_a_detail(noted):
    pd = dnn.PrimitiveDesc(relu_op(), CPU)
    assert pd.notes == ("copies", "library")
    assert pd.detail == "jit:any"
    assert pd.next().next().notes == ()
    assert pd.next().detail == ""


def test_the_explanation_has_them(noted):
    first, *others = dnn.PrimitiveDesc(relu_op(), CPU).explain().splitlines()[1:]
    assert first.endswith("0 bytes of scratchpad, jit:any, copies, library")
    assert others[1].endswith("0 bytes of scratchpad")


def test_patterns_select_by_notes(noted, monkeypatch):
    assert chosen() == "toybackend:first"
    assert chosen(skip_impl="note:copies") == "toybackend:second"
    assert chosen(skip_impl="note:copies, note:library") == "toybackend:third"
    assert chosen(skip_impl="n*,*:copies,*library") == "toybackend:first"  # patterns of names
    assert chosen(skip_impl="note:library,toybackend:third").startswith("cpu_numba:")
    assert chosen(impl="note:library", skip_impl="toybackend:first") == "toybackend:second"
    assert chosen(impl="toybackend:third,note:compiles") == "toybackend:third"
    monkeypatch.setenv("DNNCORE_SKIP_IMPL", "note:library")
    assert chosen() == "toybackend:third"
    monkeypatch.setenv("DNNCORE_IMPL", "note:compiles")
    assert chosen().startswith("cpu_numba:")


def test_the_refusal_states_the_pattern(noted):
    pd = dnn.PrimitiveDesc(relu_op(), CPU, skip_impl="note:library")
    reasons = {refusal.impl_name: str(refusal) for refusal in pd.refusals}
    assert (
        reasons["toybackend:first"] == "toybackend:first: filter: matched by skip_impl=note:library"
    )
    with pytest.raises(dnn.NoImplementation, match="impl=note:host matches no implementation"):
        chosen(impl="note:host")


def test_an_unknown_word_is_an_error(monkeypatch):
    for wishes in ({"impl": "note:fast"}, {"skip_impl": "cpu_numba:*,note:*"}):
        with pytest.raises(dnn.DescriptorError, match="note: names one of compiles, copies"):
            chosen(**wishes)
    monkeypatch.setenv("DNNCORE_SKIP_IMPL", "note:fast")
    with pytest.raises(dnn.DescriptorError, match=r"^DNNCORE_SKIP_IMPL: "):
        chosen()


def test_built_in_implementations_state_what_they_do():
    desc = dnn.MemoryDesc((64, 64))
    op = dnn.MatMul(src=desc, weights=desc, dst=desc)
    assert dnn.PrimitiveDesc(op, CPU, impl="cpu_numba:*").notes == ("compiles",)
    blocked = dnn.MatMul(src=dnn.MemoryDesc((64, 64), "f32", "Ab16a"), weights=desc, dst=desc)
    copying = dnn.PrimitiveDesc(blocked, CPU, impl="cpu_numba:*")
    assert copying.notes == ("compiles", "copies")
    assert copying.scratchpad_bytes
    reference = dnn.PrimitiveDesc(op, CPU, impl="reference:*")
    assert reference.notes == ()
    assert all(set(pd.notes) <= set(NOTES) for pd in dnn.primitive_descs(op, CPU))
