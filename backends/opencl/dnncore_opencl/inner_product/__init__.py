"""Inner product in three directions. An operation: no other package imports it."""
