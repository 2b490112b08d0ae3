"""Softmax and log-softmax. No other package imports this operation."""
