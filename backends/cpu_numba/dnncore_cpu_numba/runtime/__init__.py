"""The runtime: programs of native steps, the driver that runs them and its pool of threads.

It imports `codegen` only. Every layer above and every operation may import it.
"""
