"""Tensors that repeat their elements along a dim, by a stride of 0: right results or a refusal."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from checks import Target, reference_outputs

import dnncore as dnn
from dnncore.comparison.fills import fill_integers
from dnncore.problem import read

TEXTS = (
    "--conv --dir=FWD_B --stag=abx --wtag=abx --dtag=abx mb2ic20oc18_ih5kh3ph1",
    "--conv --dir=FWD_B --stag=axb --wtag=abx --dtag=axb mb2ic20oc18_ih5kh1",
    "--conv --dir=FWD_B,BWD_D,BWD_WB --stag=abx --wtag=abx --dtag=abx g9mb2ic9oc9_ih5kh3ph1",
    "--conv --dir=BWD_D,BWD_WB --stag=abx --wtag=abx --dtag=abx mb2ic3oc5_ih5kh3ph1",
    "--ip --dir=FWD_B,BWD_D,BWD_WB --stag=abx --wtag=abx --dtag=ab mb3ic7ih2oc9",
    "--matmul --stag=abc --wtag=abc --dtag=abc 2x7x9:2x9x17",
    "--matmul --stag=ab --wtag=ab --dtag=ab 33x20:20x1",
    "--pool --alg=max,avg_np --tag=abx mb2ic5ih7kh3sh2ph1",
    "--pool --dir=BWD_D --alg=avg_np --tag=abx mb2ic5ih7kh3sh2ph1",
    "--lrn --tag=abx mb2ic9ih4ls3alpha0.5",
    "--softmax --axis=1,2 --stag=abx --dtag=abx 3x40x4",
    "--eltwise --alg=abs --tag=abx 2x17x3",
    "--binary --alg=sub --stag=abx --dtag=abx 2x17x3:2x17x3",
    "--sum --sdt=f32:f32 --scales=2:-3 --stag=abx --dtag=abx 2x17x3",
    "--reduction --alg=sum,max --stag=abx --dtag=abx 5x17x40:5x17x1 2x17x3:2x1x3",
    "--reorder --stag=abx --dtag=axb,aBx8b 2x17x3",
)
PROBLEMS = [problem for text in TEXTS for problem in read(text)]


def repeated(desc, dim):
    """Strides of a dense tensor with one element along the dim, and 0 there."""
    one = tuple(1 if i == dim else size for i, size in enumerate(desc.dims))
    strides = list(dnn.MemoryDesc(one, desc.data_type, desc.tag).strides)
    strides[dim] = 0
    return dnn.MemoryDesc(desc.dims, desc.data_type, strides=strides)


def with_repeats(op, name, dim):
    """The operation with one repeated tensor."""
    if isinstance(op, dnn.Sum):
        named = enumerate(op.srcs)
        return replace(op, srcs=[repeated(d, dim) if name == f"src{i}" else d for i, d in named])
    return op.with_descs(**{name: repeated(getattr(op, name), dim)})


def results(pd, values):
    """The outputs for these values. A tensor with repeats has those of index 0."""
    memories = {}
    for argument, desc in pd.arguments:
        if argument.name not in values:
            memories[argument.name] = dnn.Memory(desc, pd.engine)
            continue
        array = values[argument.name]
        if desc.has_repeats:
            own = tuple(1 if s == 0 else n for n, s in zip(desc.dims, desc.strides, strict=True))
            array = np.ascontiguousarray(array[tuple(slice(n) for n in own)])
            once = dnn.MemoryDesc(own, desc.data_type, strides=desc.strides)
            dense = dnn.reorder(dnn.Memory.from_numpy(array, engine=pd.engine), once)
            memories[argument.name] = dnn.Memory(desc, pd.engine, dense.buffer)
        else:
            plain = dnn.Memory.from_numpy(array, engine=pd.engine)
            memories[argument.name] = dnn.reorder(plain, desc)
    stream = pd.engine.stream()
    pd.primitive().execute(stream, **memories).wait()
    outputs = (argument.name for argument, _ in pd.arguments if argument.direction == "out")
    return {name: memories[name].numpy(stream) for name in outputs}


@pytest.mark.in_turn(2)
@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_repeats(target: Target, problem):
    inputs = [(a.name, desc) for a, desc in problem.op.tensors() if a.direction == "in"]
    drawn = {name: fill_integers(desc, i) for i, (name, desc) in enumerate(inputs)}
    for name, desc in inputs:
        for dim in (dim for dim in range(desc.ndims) if desc.dims[dim] > 1):
            own = np.repeat(drawn[name].take([0], dim), desc.dims[dim], dim)
            values = drawn | {name: own}
            expected = reference_outputs(problem.op, values)
            op = with_repeats(problem.op, name, dim)
            found = dnn.primitive_descs(op, target.engine, impl=target.impl)
            for pd in found:
                got = results(pd, values)
                for output in expected.keys() & got.keys():
                    np.testing.assert_allclose(
                        got[output], expected[output], 1e-5, 1e-5, err_msg=f"{pd.impl_name} {op}"
                    )


@pytest.mark.in_turn(2)
@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_operands_that_repeat(target: Target, problem):
    result = problem.op.result
    values = {
        argument.name: fill_integers(desc, i)
        for i, (argument, desc) in enumerate(problem.op.tensors())
        if argument.direction == "in"
    }
    for dim in (dim for dim in range(result.ndims) if result.dims[dim] > 1):
        operand = repeated(dnn.MemoryDesc(result.dims), dim)
        own = fill_integers(dnn.MemoryDesc(result.dims), 9).take([0], dim)
        given = values | {"post_op_0_src": np.repeat(own, result.dims[dim], dim)}
        steps = (dnn.PostOp.binary("mul", operand),)
        expected = reference_outputs(problem.op, given, post_ops=steps)
        attr = dnn.Attributes(steps)
        for pd in dnn.primitive_descs(problem.op, target.engine, attr, impl=target.impl):
            got = results(pd, given)
            for output in expected.keys() & got.keys():
                np.testing.assert_allclose(
                    got[output], expected[output], 1e-5, 1e-5, err_msg=f"{pd.impl_name} {operand}"
                )
