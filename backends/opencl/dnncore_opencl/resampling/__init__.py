"""Resampling: one kernel of sums over taps, forward and backward."""
