"""Choosing among implementations: ranking, filters, iteration, explanations."""

import time
import warnings

import pytest
from toy import Relu, registered, relu_op

import dnncore as dnn

TOY = "toybackend:*"


def names(op, **wishes):
    return [pd.impl_name for pd in dnn.primitive_descs(op, dnn.engine("cpu"), **wishes)]


def test_candidates_come_in_order_of_estimated_seconds():
    slow, quick = Relu("toybackend:slow", 0.1), Relu("toybackend:quick", 0.9)
    with registered(slow, quick):
        assert names(relu_op(), impl=TOY) == ["toybackend:quick", "toybackend:slow"]


def test_seconds_given_by_the_implementation_rank_it():
    with registered(Relu("toybackend:a", 2.0), Relu("toybackend:b", None, seconds=1e-12)):
        assert names(relu_op(), impl=TOY) == ["toybackend:b", "toybackend:a"]


def test_equal_estimates_are_ordered_by_name():
    with registered(Relu("toybackend:b", 0.5), Relu("toybackend:a", 0.5)):
        assert names(relu_op(), impl=TOY) == ["toybackend:a", "toybackend:b"]


def test_next_walks_to_none():
    with registered(Relu("toybackend:a", 0.2), Relu("toybackend:b", 0.1)):
        pd = dnn.PrimitiveDesc(relu_op(), dnn.engine("cpu"), impl=TOY)
        second = pd.next()
        assert (pd.impl_name, second.impl_name) == ("toybackend:a", "toybackend:b")
        assert second.next() is None


def test_the_reference_comes_after_everything_else_and_warns_when_chosen(monkeypatch):
    found = names(relu_op())
    assert found[-1].startswith("reference:")
    monkeypatch.setattr("dnncore.selection.primitive_desc._warned", set())
    with pytest.warns(dnn.ReferenceWarning, match="eltwise"):
        dnn.PrimitiveDesc(relu_op(), dnn.engine("cpu"), skip_impl="cpu_numba:*")


def test_a_kind_of_operation_is_warned_of_once(monkeypatch):
    monkeypatch.setattr("dnncore.selection.primitive_desc._warned", {dnn.EltwiseForward})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        dnn.PrimitiveDesc(relu_op(), dnn.engine("cpu"), skip_impl="cpu_numba:*")


def test_a_preferred_reference_causes_no_warning(monkeypatch):
    monkeypatch.setattr("dnncore.selection.primitive_desc._warned", set())
    monkeypatch.setenv("DNNCORE_PREFER", "reference")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert dnn.PrimitiveDesc(relu_op(), dnn.engine("cpu")).is_reference


def test_filters_by_argument_and_environment(monkeypatch):
    with registered(Relu("toybackend:a"), Relu("toybackend:b")):
        assert names(relu_op(), impl=TOY, skip_impl="*:a") == ["toybackend:b"]
        monkeypatch.setenv("DNNCORE_IMPL", "toybackend:a")
        assert names(relu_op()) == ["toybackend:a"]
        monkeypatch.setenv("DNNCORE_SKIP_IMPL", "toybackend:a")
        assert names(relu_op()) == []


def test_preferred_backends_come_first(monkeypatch):
    with registered(Relu("toybackend:slow", 1e-6)):
        assert names(relu_op())[0] != "toybackend:slow"
        monkeypatch.setenv("DNNCORE_PREFER", "toybackend")
        assert names(relu_op())[0] == "toybackend:slow"


def test_an_unknown_preferred_backend_causes_a_warning(monkeypatch):
    monkeypatch.setenv("DNNCORE_PREFER", "refrence, cpu_numba")
    known = "DNNCORE_PREFER: unknown backend refrence; there are: .*reference"
    with pytest.warns(UserWarning, match=known):
        names(relu_op())


@pytest.mark.parametrize(
    ("count", "shown"),
    [(2, "toybackend:0, toybackend:1"), (5, "toybackend:0, toybackend:1 and 3 others")],
)
def test_implementations_with_one_reason_share_a_line_of_the_message(count, shown):
    refusing = [Relu(f"toybackend:{i}", refuse=("shape", "too large")) for i in range(count)]
    with registered(*refusing), pytest.raises(dnn.NoImplementation) as caught:
        dnn.PrimitiveDesc(relu_op(), dnn.engine("cpu"), skip_impl="cpu_numba:*,reference:*")
    lines = str(caught.value).splitlines()
    assert [line for line in lines if "too large" in line] == [f"  {shown}: shape: too large"]
    assert ("`refusals` of this error" in lines[-1]) == (count > 3)
    assert len([r for r in caught.value.refusals if r.reason == "too large"]) == count


def test_no_implementation_lists_every_refusal_with_its_numbers():
    refusing = Relu("toybackend:r", refuse=("shape", "wants 8 columns; got 5"))
    with registered(refusing), pytest.raises(dnn.NoImplementation) as caught:
        dnn.PrimitiveDesc(relu_op(), dnn.engine("cpu"), impl="toybackend:*,nothing")
    assert "toybackend:r: shape: wants 8 columns; got 5" in str(caught.value)
    kinds = {refusal.impl_name: refusal.kind for refusal in caught.value.refusals}
    assert kinds["toybackend:r"] == "shape"
    assert all(kind == "filter" for name, kind in kinds.items() if name != "toybackend:r")


def test_no_implementation_names_backends_that_cannot_be_loaded():
    with registered(table="no_such_module:TABLE"), pytest.raises(dnn.NoImplementation) as caught:
        dnn.PrimitiveDesc(relu_op(), dnn.engine("cpu"), impl="nothing")
    assert "toybackend (unavailable: ModuleNotFoundError: No module" in str(caught.value)
    assert "reference:eltwise" in str(caught.value)


def test_explain_names_every_candidate_and_where_its_rank_came_from():
    refusing = Relu("toybackend:no", refuse=("format", "blocked by 8"))
    with registered(Relu("toybackend:yes", 3.0), refusing):
        text = dnn.PrimitiveDesc(relu_op(), dnn.engine("cpu")).explain()
    assert "-> 1. toybackend:yes: accepted" in text
    assert "efficiency 3 of cpu's peaks" in text
    assert "toybackend:no: format: blocked by 8" in text
    assert "reference:" in text


def test_deterministic_removes_candidates_with_a_reason():
    attr = dnn.Attributes(deterministic=True)
    with registered(Relu("toybackend:racy", 9.0, deterministic=False)):
        pd = dnn.PrimitiveDesc(relu_op(), dnn.engine("cpu"), attr)
        assert pd.impl_name != "toybackend:racy"
        refusal = next(r for r in pd.refusals if r.impl_name == "toybackend:racy")
        assert refusal.kind == "attribute"


def test_a_scratchpad_limit_removes_candidates_with_the_numbers():
    frugal, greedy = (
        Relu("toybackend:frugal", 8.0, scratchpad_bytes=1000),
        Relu("toybackend:greedy", 9.0, scratchpad_bytes=1001),
    )
    with registered(frugal, greedy):
        cpu = dnn.engine("cpu")
        assert names(relu_op())[:2] == ["toybackend:greedy", "toybackend:frugal"]
        pd = dnn.PrimitiveDesc(relu_op(), cpu, dnn.Attributes(scratchpad_limit=1000))
        assert pd.impl_name == "toybackend:frugal"
        assert "us by efficiency 8 of cpu's peaks, 1000 bytes of scratchpad" in pd.explain()
        refusal = next(r for r in pd.refusals if r.impl_name == "toybackend:greedy")
        assert refusal.kind == "resources"
        assert refusal.reason == "needs 1001 bytes of scratchpad; scratchpad_limit=1000"
        none = dnn.Attributes(scratchpad_limit=0)
        with pytest.raises(dnn.NoImplementation, match="scratchpad_limit=0"):
            dnn.PrimitiveDesc(relu_op(), cpu, none, impl="toybackend:*")


def test_a_descriptor_is_chosen_without_building_anything():
    toy = Relu("toybackend:a", 9.0)
    with registered(toy):
        pd = dnn.PrimitiveDesc(relu_op(), dnn.engine("cpu"))
        assert (pd.impl_name, toy.built) == ("toybackend:a", 0)
        pd.primitive()
        pd.primitive()
        assert toy.built == 1


def test_selections_are_remembered_until_the_backends_change():
    toy = Relu("toybackend:a", 9.0)
    with registered(toy):
        for _ in range(3):
            dnn.PrimitiveDesc(relu_op(), dnn.engine("cpu"))
        assert toy.asked == 1
    assert names(relu_op())[0] != "toybackend:a"


def test_any_is_resolved_and_descriptors_are_attributes():
    with registered(Relu("toybackend:a", 9.0)):
        op = relu_op()
        pd = dnn.PrimitiveDesc(op, dnn.engine("cpu"))
    assert op.dst.is_any
    assert pd.dst_desc == pd.src_desc == op.src
    assert pd.workspace_desc is None
    with pytest.raises(AttributeError, match="weights_desc"):
        _ = pd.weights_desc


def test_hints_take_part_in_the_choice():
    src = dnn.MemoryDesc((1, 2, 4, 4))
    half = dnn.MemoryDesc((1, 2, 2, 2))
    window = {"kernel": (2, 2), "strides": (2, 2)}
    op = dnn.PoolingForward("forward_training", "max", src=src, dst=half, **window)
    forward = dnn.PrimitiveDesc(op, dnn.engine("cpu"))
    back = dnn.PoolingBackward("max", diff_src=src, diff_dst=half, **window)
    backward = dnn.PrimitiveDesc(back, dnn.engine("cpu"), hint=forward)
    assert backward.workspace_desc == forward.workspace_desc


def test_estimates_say_seconds_of_the_machine():
    with registered(Relu("toybackend:a", 1.0)):
        pd = dnn.PrimitiveDesc(relu_op((1000, 1000)), dnn.engine("cpu"), impl="toybackend:a")
    assert 8e6 / pd.seconds < 1e13
    assert pd.seconds < 10


def test_a_cached_descriptor_is_quick():
    dnn.PrimitiveDesc(relu_op(), dnn.engine("cpu"))
    start = time.perf_counter()
    for _ in range(100):
        dnn.PrimitiveDesc(relu_op(), dnn.engine("cpu"))
    assert (time.perf_counter() - start) / 100 < 5e-3  # two orders above what it takes
