"""The compiled functions of operators; their sources are in ``native/operators``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tensorops._display import shortened
from tensorops._messages import installed_from

try:
    import tensorops.kernels.cpu._native  # noqa: F401 - first, to distinguish its absence from other errors
except ModuleNotFoundError as error:
    tree = Path(__file__).parents[3]
    if (tree / "native" / "CMakeLists.txt").exists() and installed_from() != tree.as_uri():
        reason = (
            "tensorops was imported from its source tree, which holds no compiled module; start Python in another "
            "folder, or install with: pip install -e . (it needs a C++ compiler; Debian: apt-get install g++)"
        )
    else:
        reason = (
            "tensorops was installed without its compiled module, for lack of a working C++ compiler; install one "
            "(Debian: apt-get install g++) and then tensorops again, with pip's option --force-reinstall"
        )
    raise ImportError(reason) from error
except ImportError as error:
    if str(error).startswith("TENSOROPS_CPU_TARGET"):  # an unknown target must not silently disable the kernels
        raise ValueError(f"environment variable {shortened(error, 500)}") from None
    raise

from tensorops import ops
from tensorops._kernel import Configuration, Packed
from tensorops.backends import probing
from tensorops.backends.registry import resolve
from tensorops.hardware import usable_processors
from tensorops.kernels.cpu import _native, calls, panels  # noqa: F401 - the import of `calls` has an effect

_native.use_processors(usable_processors())

CONFIGURATIONS = {
    "linear": Configuration(
        {"few_rows": "up to how many rows of x half-precision weights are widened in registers, not once for all rows"},
        choose=lambda *_args, **_options: _native.linear_configuration(),
        function=_native.linear_tuned,
    ),
}
PACK: dict[str, Callable[..., Packed | str]] = {
    "linear": panels.pack_linear,
    "linear_activation": panels.pack_linear,
    "quantized_linear": panels.pack,
}

OPERATORS = tuple(each for each in ops.every_operator() if each.__name__ in _native.operators())

for _operator in OPERATORS:
    _name = _operator.__name__
    # The compiled functions are the kernels: they decline in C++ what `supports` refuses, so a call needs no launcher.
    _operator.kernel(
        "cpu",
        supports=getattr(_native, f"{_name}_supports"),
        checks=True,
        configuration=CONFIGURATIONS.get(_name),
        pack=PACK.get(_name),
    )(getattr(_native, _name))


def configure() -> None:
    """Apply the configuration of the compiled kernels once they are loaded."""
    probing.configure_device(resolve("cpu"))


configure()
