"""Reduction of dims of a tensor. An operation: no other package imports it."""
