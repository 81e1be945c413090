"""Writing files atomically."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def write_atomically(path: Path, text: str) -> None:
    """Write a text file atomically: concurrent readers see the old file or the new one.

    A link stays a link, and its target is replaced. A file keeps its permissions; a new one gets those of the umask.

    Raises
    ------
    OSError
        If the folder or the file cannot be written; the old file is then unchanged.
    """
    import os
    import secrets
    from functools import partial
    from pathlib import Path

    target = path.resolve()
    target.parent.mkdir(parents=True, exist_ok=True)
    kept = target.stat().st_mode & 0o777 if target.exists() else None
    temporary = Path(target.parent, f".{target.name}.{secrets.token_hex(8)}.tmp")
    # Never readable by more users than the result, not even while it is empty.
    opener = partial(os.open, mode=0o666 if kept is None else kept)
    try:
        with open(temporary, "x", encoding="utf-8", opener=opener) as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        if kept is not None:
            temporary.chmod(kept)
        temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
