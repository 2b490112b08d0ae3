"""Statistics of sets of elements, such as rows or channels. Operations compute with them."""
