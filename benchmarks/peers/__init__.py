"""Routers beside each other; see :mod:`benchmarks.peers.__main__`."""
