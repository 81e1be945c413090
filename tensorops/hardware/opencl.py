"""The OpenCL devices, as listed by PyOpenCL.

An OpenCL driver may crash or hang on its first query, and loading it changes the process. So this file is also a
program: it runs on its own, does not import tensorops, and prints what it finds.
"""

from __future__ import annotations

import json
import sys
from typing import Any

SECONDS = 20.0
"""How long the program may take: it starts Python, imports NumPy and PyOpenCL and loads every driver."""

MARK = "tensorops-opencl:"
"""The beginning of its one line; drivers print their own lines."""


def listing(cl: Any) -> dict[str, list[Any]]:
    """Return the devices that the module `pyopencl` lists: ``{"devices": [...], "notes": [...]}``."""
    devices: list[dict[str, Any]] = []
    notes: list[str] = []
    try:
        platforms = cl.get_platforms()
    except Exception as error:  # the loader raises if there is no platform at all
        return {"devices": devices, "notes": [f"OpenCL: {error}"]}
    for platform in platforms:
        try:
            devices += [_facts(cl, platform, device) for device in platform.get_devices()]
        except Exception as error:  # a platform without a device raises as well
            notes.append(f"OpenCL platform {_text(platform)}: {error}")
    return {"devices": devices, "notes": notes}


def _text(platform: Any) -> str:
    return str(getattr(platform, "name", "without a name")).strip()


def _facts(cl: Any, platform: Any, device: Any) -> dict[str, Any]:
    kinds = {"gpu": cl.device_type.GPU, "accelerator": cl.device_type.ACCELERATOR, "cpu": cl.device_type.CPU}
    return {
        "name": str(device.name).strip(),
        "platform": _text(platform),
        "kind": next((kind for kind, bit in kinds.items() if device.type & bit), "other"),
        "memory": int(device.global_mem_size),
        "compute_units": int(device.max_compute_units),
    }


def main() -> None:
    """Print the listing; the first argument is the path to import from."""
    sys.path[:] = json.loads(sys.argv[1])
    import pyopencl

    print(MARK + json.dumps(listing(pyopencl)), flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
