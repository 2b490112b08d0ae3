"""The algorithms of eltwise, binary and reduction, and the kinds of post-ops: one record for each.

A record holds everything that the core knows about its subject: formula, slope, error bound,
parameters to try, and torch's result. Operations, attributes, error bounds, the conformance kit,
problem text and documents read the records. The reference has formulas of its own, and so is an
independent witness.

    eltwise.py, binary.py, reduction.py    tables name -> record
    post_ops.py                            the kinds of post-ops
    rules.py                               checks of names and numbers
    rounding.py                            what the error bounds are made of

Every package of the core but `tensors` may import this one.
"""
