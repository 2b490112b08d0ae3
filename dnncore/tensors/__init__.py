"""Descriptors of tensors: dims, data types, layouts and format tags.

Imports only `dnncore.errors`.
"""
