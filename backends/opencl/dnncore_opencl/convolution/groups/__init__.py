"""Convolutions in groups of few channels, among them depthwise ones, for GPUs."""
