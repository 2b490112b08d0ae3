"""The problems with which the kit tests implementations: lists in `*.txt`, and random problems.

`testing` and `running` import it.
"""
