"""Max pooling and average pooling. No other package imports this operation."""
