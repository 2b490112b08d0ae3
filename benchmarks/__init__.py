"""What dnncore costs and how fast it is beside its peers: `python -m benchmarks.<name>`."""
