"""Random networks of `transformers`, made once for a module."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return the folder and the logits of a network by its name."""
    pytest.importorskip("transformers")
    import tiny_networks

    return tiny_networks.saver(tmp_path_factory)
