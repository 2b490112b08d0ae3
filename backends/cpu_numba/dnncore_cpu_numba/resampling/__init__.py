"""Resampling: `implementation.py` divides the tensors, `rows_task.py` computes rows or images."""
