"""Checks of one implementation on one problem. `table.py` lists the checks.

`testing`, `running` and `cli` import it.
"""
