"""Recurrent cells: products with weights, and tasks that compute the cells between them."""
