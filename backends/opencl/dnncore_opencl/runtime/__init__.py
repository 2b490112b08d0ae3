"""The runtime: engine, streams, events, builds, launches, copies to the host, peaks, tuning."""
