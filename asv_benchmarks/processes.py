"""Child processes of a benchmark: those that answer requests, and those that only keep processors busy."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

from tensorops.benchmarks.measuring import CannotMeasureError

# The thread ends the process when the parent ends, however it does: then its end of the pipe is closed.
_SPIN = """
import os, sys, threading
threading.Thread(target=lambda: (sys.stdin.buffer.read(), os._exit(0)), daemon=True).start()
sys.stdout.write("spinning\\n")
sys.stdout.flush()
while True: pass
"""


class Child:
    """A process that reads requests line by line and answers each with a line, both in JSON, until its input ends.

    Parameters
    ----------
    name : str
        What error messages call it.
    command : sequence of str
        The command line.
    environment : mapping of str to str, optional
        Its environment variables; by default, those of this process.
    """

    def __init__(self, name: str, command: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        self._name, self._command, self._environment = name, command, environment

    def __enter__(self) -> Child:
        pipe = subprocess.PIPE
        self._said = tempfile.TemporaryFile("w+", errors="replace")  # an unread pipe could fill up
        self._process = subprocess.Popen(
            self._command, stdin=pipe, stdout=pipe, stderr=self._said, text=True, env=self._environment
        )
        return self

    @property
    def pid(self) -> int:
        """The number of the process."""
        return self._process.pid

    def send(self, request: Any) -> None:
        """Send a request; `receive` must follow."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise CannotMeasureError(self._how_it_ended()) from None

    def receive(self) -> Any:
        """Return the answer to the last request."""
        assert self._process.stdout is not None
        answer = self._process.stdout.readline()
        if not answer:
            raise CannotMeasureError(self._how_it_ended())
        return json.loads(answer)

    def ask(self, request: Any) -> Any:
        """Return the answer to a request."""
        self.send(request)
        return self.receive()

    def _how_it_ended(self) -> str:
        code = self._process.wait()
        self._said.seek(0)
        lines = self._said.read().split("\n")
        return f"{self._name} ended with code {code}" + next((f": {x}" for x in reversed(lines) if x.strip()), "")

    def __exit__(self, *_: object) -> None:
        if hasattr(self, "_process"):
            self._process.kill()
            self._process.communicate()
            self._said.close()


class Spinners:
    """A number of processes that compute without end; they end with the block, or with this process."""

    def __init__(self, count: int) -> None:
        self._count = count
        self.processes: list[subprocess.Popen[str]] = []

    def __enter__(self) -> Spinners:
        pipe = subprocess.PIPE
        try:
            for _ in range(self._count):
                command = [sys.executable, "-S", "-c", _SPIN]
                self.processes.append(
                    subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True)
                )
            for process in self.processes:
                assert process.stdout is not None
                if not process.stdout.readline():
                    raise CannotMeasureError(f"a spinning process ended with code {process.wait()}")
        except BaseException:  # also Ctrl-C, with which the block would never be entered
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.communicate()
