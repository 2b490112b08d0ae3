"""Compositions: implementations of an operation that are made of other operations' primitives.

A backend offers an operation that it has no kernel for as steps that it has kernels for.
"""
