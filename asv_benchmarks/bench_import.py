"""Import times, each in a fresh interpreter: the difference from NumPy is the cost of tensorops."""


def timeraw_import_tensorops():
    return "import tensorops"


def timeraw_import_numpy():
    return "import numpy"
