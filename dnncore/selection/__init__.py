"""Plugins, and the selection of implementations, up to a primitive descriptor."""
