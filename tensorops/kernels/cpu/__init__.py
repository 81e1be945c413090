"""Kernels in C++ for arrays in host memory; the sources are in ``native/cpu``."""

from pathlib import Path

from tensorops._display import shortened

try:
    import tensorops.kernels.cpu._native  # noqa: F401 - first, so that its absence is told from other errors
except ModuleNotFoundError as error:
    if (Path(__file__).parents[3] / "native" / "CMakeLists.txt").exists():
        reason = (
            "tensorops was imported from its source tree, which holds no compiled module; start Python in another "
            "folder, or install with: pip install --editable . (it needs a C++ compiler; Debian: apt-get install g++)"
        )
    else:
        reason = (
            "tensorops was installed without its compiled module, for lack of a working C++ compiler; install one "
            "(Debian: apt-get install g++) and then tensorops again, with pip's option --force-reinstall"
        )
    raise ImportError(reason) from error
except ImportError as error:
    if str(error).startswith("TENSOROPS_CPU_TARGET"):  # an unknown name is no reason to go on without kernels
        raise ValueError(f"environment variable {shortened(error, 500)}") from None
    raise

from tensorops.kernels.cpu import (
    activation,
    attention,
    linear,
    loss,
    normalization,
    positional,
    quantization,
    sampling,
)


def configure() -> None:
    """Apply what is configured for the compiled kernels, once they are loaded."""
    from tensorops.backends import probing
    from tensorops.backends.registry import resolve

    probing.configure_device(resolve("cpu"))


configure()

__all__ = [
    "activation",
    "attention",
    "configure",
    "linear",
    "loss",
    "normalization",
    "positional",
    "quantization",
    "sampling",
]
