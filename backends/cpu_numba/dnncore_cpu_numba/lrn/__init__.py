"""Local response normalisation. An operation: no other package imports it."""
