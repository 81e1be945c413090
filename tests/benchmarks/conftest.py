"""The comparisons in ``asv_benchmarks``, which are in the repository and in no distribution."""

import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

if (ROOT / "asv_benchmarks").is_dir():
    sys.path.insert(0, str(ROOT))
    import asv_benchmarks  # noqa: F401 - its modules are then found without the path

    sys.path.remove(str(ROOT))
else:
    collect_ignore_glob = ["*"]
