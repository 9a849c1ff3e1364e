"""Benchmarks against the reference and other libraries: asv runs the classes, ``compare`` prints tables."""
