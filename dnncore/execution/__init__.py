"""Primitives and sequences that run, and the observers of their launches."""
