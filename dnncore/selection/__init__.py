"""Plugins and the choice among their implementations, up to a primitive descriptor."""
