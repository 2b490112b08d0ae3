"""Pooling by maximum and average. An operation: no other package imports it."""
