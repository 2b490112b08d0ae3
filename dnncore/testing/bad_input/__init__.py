"""Valid calls with random changes: each must raise an error of dnncore or be correct.

Only tests import it.
"""
