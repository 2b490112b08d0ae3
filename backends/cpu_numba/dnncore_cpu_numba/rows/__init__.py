"""Statistics of sets of elements in any layout: moments, and sums of products."""
