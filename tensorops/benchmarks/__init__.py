"""Benchmarks of operators: on several backends, against other libraries, and with asv.

Within tensorops, only the command ``tensorops bench`` imports it; the asv benchmarks use it as well.
"""
