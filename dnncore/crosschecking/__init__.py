"""Cross-check of whole programs: every launch is repeated by another implementation.

`session.py` has the public function `crosscheck`, `environment.py` its environment variables.
`testing` and `cli` may import this package.
"""
