"""Scenarios: random sequences of calls on shared memories, compared with a model in numpy.

The checks of the kit examine one problem with separate memories. A scenario examines programs with
many problems and memories: several tensors in one buffer, parts of tensors, repeated elements,
copies between engines, streams that wait for each other, replayed sequences, memories that are
dropped.

    python -m dnncore.testing.scenarios --engines=cpu,pocl --seconds=60 --seed=3
"""
