"""The problems with which the kit tests implementations: lists in `*.txt`, and random ones.

`testing` and `running` import it.
"""
