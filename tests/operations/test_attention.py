"""Attention: algebra, masks, queries that see no key, gradients of torch, rules."""

import numpy as np
import pytest
from conftest import TARGETS

import dnncore as dnn
from dnncore import functional as F
from dnncore.comparison.fills import fill_normal
from dnncore.problem import read
from dnncore.testing import run_case

rng = np.random.default_rng(7)


def normal(*dims):
    return rng.standard_normal(dims).astype(np.float32)


def forward(**changes):
    fields = {
        "queries": dnn.MemoryDesc((2, 4, 3, 5)),
        "keys": dnn.MemoryDesc((2, 2, 6, 5)),
        "values": dnn.MemoryDesc((2, 2, 6, 7)),
        "dst": dnn.MemoryDesc((2, 4, 3, 7)),
    }
    return dnn.AttentionForward("forward_training", **(fields | changes))


# -- values ----------------------------------------------------------------------------------------


@pytest.fixture(params=["cpu_numba:*", "reference:*"])
def impl(request, monkeypatch):
    if request.param.startswith("cpu_numba"):
        pytest.importorskip("dnncore_cpu_numba.attention")
    monkeypatch.setenv("DNNCORE_IMPL", request.param)


@pytest.mark.usefixtures("impl")
@pytest.mark.filterwarnings("ignore::dnncore.ReferenceWarning")
class TestValues:
    def test_equal_scores_give_the_mean(self):
        values = normal(2, 9, 4)
        found = F.scaled_dot_product_attention(
            np.zeros((2, 3, 5), np.float32), normal(2, 9, 5), values
        )
        assert np.allclose(found, values.mean(1, keepdims=True), atol=1e-6)

    def test_a_constant_added_to_the_mask_changes_nothing(self):
        q, k, v = normal(2, 3, 8), normal(2, 40, 8), normal(2, 40, 4)
        mask = normal(3, 40)
        one, other = (F.scaled_dot_product_attention(q, k, v, m) for m in (mask, mask + 50))
        assert np.allclose(one, other, atol=1e-4)

    def test_the_order_of_keys_does_not_matter(self):
        q, k, v = normal(5, 8), normal(70, 8), normal(70, 4)
        order = rng.permutation(70)
        one = F.scaled_dot_product_attention(q, k, v)
        assert np.allclose(one, F.scaled_dot_product_attention(q, k[order], v[order]), atol=1e-6)

    @pytest.mark.parametrize(("causal", "shift"), [("top_left", 0), ("bottom_right", 4)])
    def test_causal_is_a_mask(self, causal, shift):
        q, k, v = normal(3, 37, 8), normal(3, 41, 8), normal(3, 41, 4)
        mask = np.where(np.tril(np.ones((37, 41)), shift) > 0, 0, -np.inf).astype(np.float32)
        found = F.scaled_dot_product_attention(q, k, v, causal=causal)
        assert np.allclose(found, F.scaled_dot_product_attention(q, k, v, mask), atol=1e-6)

    def test_queries_that_see_no_key_are_zero(self):
        q, k, v = normal(5, 8), normal(2, 8), normal(2, 4)
        found = F.scaled_dot_product_attention(q, k, v, causal="bottom_right")
        assert not found[:3].any()
        assert found[3:].all()
        mask = np.zeros((5, 2), np.float32)
        mask[1] = -np.inf
        found = F.scaled_dot_product_attention(q, k, v, mask)
        assert not found[1].any()
        assert np.isfinite(found).all()
        assert found[0].all()

    @pytest.mark.parametrize("queries", [1, 5])
    def test_a_mask_of_the_lowest_finite_numbers_excludes_no_key(self, queries):
        """Only -inf does. Programs give padded queries such masks."""
        q, k, v = normal(queries, 8), normal(40, 8), normal(40, 4)
        lowest = np.full((queries, 40), np.finfo(np.float32).min)
        found = F.scaled_dot_product_attention(q, k, v, lowest)
        np.testing.assert_allclose(found, np.tile(v.mean(0), (queries, 1)), atol=1e-6)

    def test_scores_of_any_size(self):
        q, k, v = normal(4, 8) * 1e4, normal(50, 8) * 1e4, normal(50, 3)
        best = (q.astype(float) @ k.T.astype(float)).argmax(1)
        assert np.allclose(F.scaled_dot_product_attention(q, k, v), v[best])

    def test_groups_of_heads(self):
        q, k, v = normal(2, 6, 3, 8), normal(2, 2, 9, 8), normal(2, 2, 9, 4)
        wide = [np.repeat(x, 3, axis=1) for x in (k, v)]
        found = F.scaled_dot_product_attention(q, k, v)
        assert np.allclose(found, F.scaled_dot_product_attention(q, *wide), atol=1e-6)


@pytest.mark.filterwarnings("ignore::dnncore.ReferenceWarning")
def test_gradients_are_those_of_torch():
    torch = pytest.importorskip("torch")
    op = forward(causal="bottom_right", mask=dnn.MemoryDesc((1, 4, 1, 6)))
    names = ("queries", "keys", "values")
    descs = {f"diff_{n}": getattr(op, n) for n in names}
    fields = {n: getattr(op, n) for n in (*names, "mask", "dst")}
    back = dnn.AttentionBackward(**fields, diff_dst=op.dst, **descs, causal="bottom_right")
    engine, arrays = dnn.engine("cpu"), {}
    for seed, name in enumerate((*names, "mask", "diff_dst")):
        arrays[name] = fill_normal(getattr(back, name), seed)
    hint = dnn.PrimitiveDesc(op, engine)
    pd = dnn.PrimitiveDesc(back, engine, hint=hint)
    memories = {n: dnn.Memory.from_numpy(a) for n, a in arrays.items()}
    saved = {
        "dst": dnn.Memory(op.dst, engine),
        "workspace": dnn.Memory(hint.workspace_desc, engine),
    }
    stream = engine.stream()
    read = {n: memories[n] for n in (*names, "mask")}
    hint.primitive().execute(stream, **read, **saved)
    diffs = {n: dnn.Memory(desc, engine) for n, desc in descs.items()}
    pd.primitive().execute(stream, **memories, **saved, **diffs)
    t = {n: torch.tensor(a.astype(np.float64), requires_grad=True) for n, a in arrays.items()}
    scores = torch.einsum("nhqd,nhkd->nhqk", t["queries"], t["keys"].repeat_interleave(2, 1))
    scores = scores / 5**0.5 + t["mask"]
    scores = scores.masked_fill(~torch.ones(3, 6, dtype=torch.bool).tril(3), -np.inf)
    dst = torch.softmax(scores, -1) @ t["values"].repeat_interleave(2, 1)
    dst.backward(t["diff_dst"].detach())
    for name in names:
        assert np.allclose(diffs[f"diff_{name}"].numpy(), t[name].grad.numpy(), atol=1e-5), name


@pytest.mark.parametrize("impl", ["cpu_numba:*", "reference:*"])
def test_gradients_with_a_mask_of_the_lowest_finite_numbers(impl):
    """A weight is exp(score - lse), and lse of equal scores is the score, rounded to f32."""
    if impl.startswith("cpu_numba"):
        pytest.importorskip("dnncore_cpu_numba.attention")
    engine, desc = dnn.engine("cpu"), dnn.MemoryDesc((1, 1, 6, 4))
    fields = dict.fromkeys(("queries", "keys", "values", "dst"), desc)
    fields["mask"] = dnn.MemoryDesc((1, 1, 1, 6))
    own = dict.fromkeys(("diff_dst", "diff_queries", "diff_keys", "diff_values"), desc)
    pd = dnn.PrimitiveDesc(dnn.AttentionBackward(**fields, **own), engine, impl=impl)
    arrays = {n: normal(*desc.dims) for n in ("queries", "keys", "values", "dst", "diff_dst")}
    arrays["mask"] = np.full((1, 1, 1, 6), np.finfo(np.float32).min)
    lse = np.full((1, 1, 6, 1), np.finfo(np.float32).min)
    memories = {n: dnn.Memory.from_numpy(a) for n, a in arrays.items()}
    memories["workspace"] = dnn.Memory.from_numpy(lse)
    for name in ("diff_queries", "diff_keys", "diff_values"):
        memories[name] = dnn.Memory(desc, engine)
    pd.primitive().execute(engine.stream(), **memories).wait()
    sums = np.broadcast_to(arrays["diff_dst"].sum(2, keepdims=True), desc.dims)
    np.testing.assert_allclose(memories["diff_values"].numpy(), sums, rtol=1e-5, atol=1e-6)


# -- the operation ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("causal", "q", "k", "pairs"), [
    ("none", 3, 5, 15), ("top_left", 3, 5, 6), ("top_left", 5, 3, 12), ("bottom_right", 3, 5, 12),
    ("bottom_right", 5, 3, 6), ("bottom_right", 0, 3, 0), ("top_left", 4, 0, 0),
])  # fmt: skip
def test_pairs_of_queries_and_keys(causal, q, k, pairs):
    op = forward(
        queries=dnn.MemoryDesc((2, 4, q, 5)), keys=dnn.MemoryDesc((2, 2, k, 5)),
        values=dnn.MemoryDesc((2, 2, k, 7)), dst=dnn.MemoryDesc((2, 4, q, 7)), causal=causal,
    )  # fmt: skip
    assert op.pairs == 8 * pairs
    assert op.flops == 2 * 8 * pairs * 12


def test_the_scale_has_a_default():
    assert forward().scale == 5**-0.5
    assert forward(scale=2).scale == 2.0
    assert forward(scale=5**-0.5) == forward()


D = dnn.MemoryDesc


@pytest.mark.parametrize(("changes", "message"), [
    ({"queries": D((4, 3, 5))}, "must have 4 dims; got (4, 3, 5)"),
    ({"keys": D((2, 2, 6, 4))}, "keys must be (N, G, K, D) with N = 2 and D = 5 of queries; got"),
    ({"values": D((2, 2, 5, 7))}, "values must be (N, G, K, V) with (2, 2, 6) of keys; got"),
    ({"keys": D((2, 3, 6, 5)), "values": D((2, 3, 6, 7))},
     "the heads of queries must be a multiple of the heads of keys; got 4 and 3"),
    ({"dst": D((2, 4, 3, 5))},
     "dst must be (2, 4, 3, 7) (queries' dims and values' last dim); got (2, 4, 3, 5)"),
    ({"mask": D((2, 2, 3, 6))},
     "mask must have 4 dims, each 1 or that of the scores (2, 4, 3, 6); got (2, 2, 3, 6)"),
    ({"causal": "left"}, "causal must be one of none, top_left, bottom_right; got 'left'"),
    ({"causal": np.ones(2)}, "causal must be one of none, top_left, bottom_right; got array"),
    ({"scale": float("inf")}, "scale must be a finite number"),
])  # fmt: skip
def test_rules(changes, message):
    with pytest.raises(dnn.DescriptorError) as caught:
        forward(**changes)
    assert message in str(caught.value)
    assert str(caught.value).startswith("attention: ")


def test_gradients_have_the_dims_of_their_tensors():
    op = forward()
    fields = {n: getattr(op, n) for n in ("queries", "keys", "values", "dst")}
    with pytest.raises(dnn.DescriptorError, match=r"diff_keys must be .*keys' dims"):
        dnn.AttentionBackward(
            **fields, diff_dst=op.dst, diff_queries=op.queries, diff_keys=op.queries,
            diff_values=op.values,
        )  # fmt: skip


def test_shapes_of_the_function_are_checked():
    with pytest.raises(dnn.DescriptorError, match=r"keys must be .*, of queries' rank"):
        F.scaled_dot_product_attention(normal(2, 3), normal(1, 2, 3), normal(2, 3))
    with pytest.raises(dnn.DescriptorError, match="queries must be an array in host memory"):
        F.scaled_dot_product_attention(None, *[normal(2, 3)] * 2)
    with pytest.raises(dnn.DescriptorError, match="mask must have the last dims of the scores"):
        F.scaled_dot_product_attention(*[normal(2, 3)] * 3, normal(1, 1, 1, 2, 2))


@pytest.mark.parametrize("threads", [1, 3])
def test_few_queries_share_the_keys_among_threads(threads):
    pytest.importorskip("dnncore_cpu_numba.attention")
    q, k, v = normal(2, 3, 8), normal(2, 1000, 8), normal(2, 1000, 5)
    before = dnn.get_num_threads()
    dnn.set_num_threads(threads)
    try:
        found = F.scaled_dot_product_attention(q, k, v, causal="bottom_right")
    finally:
        dnn.set_num_threads(before)
    scores = q.astype(float) @ k.swapaxes(1, 2) / np.sqrt(8)
    weights = np.exp(np.where(np.tril(np.ones((3, 1000)), 997) > 0, scores, -np.inf))
    right = weights @ v / weights.sum(-1, keepdims=True)
    np.testing.assert_allclose(found, right, rtol=0, atol=1e-6)


@pytest.mark.parametrize("target", TARGETS, ids=str)
def test_a_blocked_mask_is_broadcast(target):
    """Its block has padding, which no query and key may read."""
    mask = "--mtag=abCd16c --mask_type=buffer --mask_bits=0"
    ((problem,)) = read(f"--sdpa {mask} 1x2x3x8:1x2x8x5:1x2x5x8")
    result = run_case(problem, target.engine, checks=("random",))
    assert result.executed
    assert not result.failures
