"""Import times, each in a fresh interpreter: the difference from NumPy is the cost of tensorops."""


def timeraw_import_tensorops():
    return "import tensorops"


def timeraw_import_numpy():
    return "import numpy"


def timeraw_first_result():
    """Import, read the configuration, choose a kernel, and load the compiled module."""
    return "import numpy, tensorops; tensorops.rms_norm(numpy.ones(64, dtype=numpy.float32))"


def timeraw_command_line():
    return "from tensorops.cli import main"
