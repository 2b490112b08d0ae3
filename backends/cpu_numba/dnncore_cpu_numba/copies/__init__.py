"""Copies of tensors between layouts and data types.

`reformat` copies whole tensors into any layout and data type. `gather` copies f32 by tables of
places. Its target and source may differ in shape (borders, packed weights, column matrices).

This package imports `codegen` and `runtime`. `elementwise`, `gemm` and operations import it.
"""
