"""The problems with which implementations are tested: `*.txt` lists, and random ones.

`testing` and `running` import it.
"""
