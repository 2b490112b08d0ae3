"""The runtime: engine, streams, events, builds of programs, launches, copies to and from the host.

It imports `devices` only. Every layer above and every operation may import it.
"""
