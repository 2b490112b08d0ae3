"""Plugins, the selection of implementations, and primitive descriptors."""
