"""`array_api_compat.numpy`, without the modules that NumPy itself imports on first use.

array_api_compat copies every name that NumPy lists, which imports f2py, testing and others: as much work as importing
NumPy itself. So they are left out of NumPy's lists meanwhile; the namespace gets them from NumPy on demand.
The import system runs this file only once, so threads do not disturb each other.
"""

import sys
from types import ModuleType

import numpy as np


def _imported() -> ModuleType:
    names = [name for name in np.__all__ if name in vars(np)]
    lists = {"__all__": np.__all__, "__dir__": np.__dir__}
    vars(np).update(__all__=names, __dir__=lambda: names)
    try:
        import array_api_compat.numpy as namespace
    finally:
        vars(np).update(lists)
    vars(namespace)["__getattr__"] = np.__getattr__
    return sys.modules[namespace.__name__]


sys.modules[__name__] = _imported()
