"""Benchmarks; each prints its figures, with ``--json`` as one object."""
