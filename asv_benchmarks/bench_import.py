"""Importing, each time in a fresh interpreter: the difference to NumPy is the price of tensorops."""


def timeraw_import_tensorops():
    return "import tensorops"


def timeraw_import_numpy():
    return "import numpy"
