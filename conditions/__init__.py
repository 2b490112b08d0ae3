"""Conditions: each condition of the source must be true in one test and false in another one.

A fault that no test notices hides behind a condition that no test meets: a size, a format or an
attribute that nobody tried. `make conditions` runs tests with copies of the modules in memory that
record how each condition was decided, and lists those that had one outcome only. `known.toml` has
the reasons of those that cannot have both here.

`source.py` finds the conditions of a text and adds the records. `hook.py` does so when a module is
imported, in all processes. `__main__.py` runs a command and reports.
"""
