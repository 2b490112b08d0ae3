"""The algorithms of eltwise, binary and reduction, and the kinds of post-ops: one record for each.

A record holds everything that the core knows about an algorithm: formula, slope, error bound,
parameters to test, and torch's result. Operations, attributes, error bounds, the conformance kit,
problem text and documents read the records. The reference has its own formulas, so that it checks
the records independently.

    eltwise.py, binary.py, reduction.py    tables name -> record
    post_ops.py                            the kinds of post-ops
    rules.py                               checks of names and numbers
    rounding.py                            the parts of error bounds

Every package of the core except `tensors` may import this package.
"""
