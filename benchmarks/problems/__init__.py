"""Measured problems: lines of the documents with their goals, and sets of problem texts."""
