"""Convolutions with few channels per group, including depthwise convolutions, for GPUs."""
