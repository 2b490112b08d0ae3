"""Attention in blocks of queries and keys; the scores of a block stay in caches."""
