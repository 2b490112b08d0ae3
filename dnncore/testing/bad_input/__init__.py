"""Valid calls with random changes. Each must raise an error of dnncore or be correct.

Only tests import it.
"""
