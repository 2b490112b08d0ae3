"""Reduction of dims of a tensor. No other package imports this operation."""
