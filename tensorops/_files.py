"""The user's cache folder, files of bounded size, and writing files atomically."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def cache_folder() -> Path:
    """Return the folder of tensorops in the user's cache folder, whether or not it exists."""
    import os
    import sys
    from pathlib import Path

    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or os.path.expanduser(r"~\AppData\Local")  # noqa: PTH111
    elif sys.platform == "darwin":
        base = os.path.expanduser("~/Library/Caches")  # noqa: PTH111
    else:
        base = os.environ.get("XDG_CACHE_HOME", "").strip() or os.path.expanduser("~/.cache")  # noqa: PTH111
    return Path(base, "tensorops")


def read_regular(path: Path, limit: int) -> bytes:
    """Return the content of a regular file; a pipe without a writer does not make it wait.

    Raises
    ------
    OSError
        If it cannot be opened, is not regular, or has more than `limit` bytes.
    """
    import errno
    import os
    import stat

    def without_waiting(name: str, flags: int) -> int:
        return os.open(name, flags | getattr(os, "O_NONBLOCK", 0))

    with open(path, "rb", opener=without_waiting) as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        # `read` reserves as many bytes as it is asked for, and a file may grow after its size was asked.
        content = file.read(min(status.st_size, limit) + 1)
    if len(content) > limit:
        raise OSError(errno.EFBIG, f"larger than {limit} bytes", str(path))
    return content


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write a file atomically: concurrent readers see the old file or the new one.

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
        with open(temporary, "xb", opener=opener) as stream:
            stream.write(content.encode() if isinstance(content, str) else content)
            stream.flush()
            os.fsync(stream.fileno())
        if kept is not None:
            temporary.chmod(kept)
        temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
