"""Recurrent cells: products with weights of all steps, and a kernel per step."""
