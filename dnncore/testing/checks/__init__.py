"""Checks of one implementation on one problem: `table.py` lists them, `case.py` prepares them.

`testing`, `running` and `cli` import it.
"""
