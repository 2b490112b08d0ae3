"""The runtime: programs of native steps, the driver that runs them and its pool of threads.

The runtime imports only `codegen`. All higher layers and all operations may import it.
"""
