"""Softmax and log-softmax. An operation: no other package imports it."""
