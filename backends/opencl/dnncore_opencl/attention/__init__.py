"""Attention in tiles of queries and keys."""
