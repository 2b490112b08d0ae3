"""Copies of tensors between layouts: transposes, and plain copies of blocked tensors."""
