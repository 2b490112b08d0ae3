"""Conditions: each condition of the source must be true in one test and false in another one.

Tests miss a fault if it needs a condition that no test meets, such as an untested size, format or
attribute. `make conditions` runs tests with changed copies of the modules in memory. They record
whether each condition was true and whether it was false. The command lists the conditions with only
one outcome. `known.toml` states why some conditions cannot have both outcomes here.

`source.py` finds the conditions of a text and adds calls that record outcomes. `hook.py` applies
this to each module that is imported, in all processes. `__main__.py` runs a command and reports.
"""
