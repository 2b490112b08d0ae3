"""The runtime: engine, streams, events, builds, launches, copies to the host, peaks, tuning tables.

It imports `devices` only. Every layer above and every operation may import it.
"""
