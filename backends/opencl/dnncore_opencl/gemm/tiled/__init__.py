"""The family `tiled` for GPUs: tiles in local memory."""
