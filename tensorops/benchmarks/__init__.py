"""Measuring operators: on several backends, beside other libraries, and with asv.

Nothing else in tensorops imports it but the command ``tensorops bench``; the benchmarks of asv use it as well.
"""
