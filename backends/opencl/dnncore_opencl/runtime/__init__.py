"""The runtime: engine, streams, events, builds, launches, copies to the host, peaks, tuning.

It may import `devices` only. Every layer above and every operation may import it.
"""
