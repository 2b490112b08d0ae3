"""Local response normalisation. No other package imports this operation."""
