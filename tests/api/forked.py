# SPDX-License-Identifier: Apache-2.0
"""``vgpumgr-api`` as a process, without the second that a new Python needs to import it.

Each process is forked from one that has imported the product and done nothing else, and runs the command's own `main`.
http/test_serve and test_try_api show that the command works from a shell.
"""

import asyncio
import gc
import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

import anyio
import uvicorn
from vgpumgr_api import server  # noqa: F401  # main imports it when it serves
from vgpumgr_api.app import create_app
from vgpumgr_api.db import schema
from vgpumgr_api.db.database import Database
from vgpumgr_api.main import main

# Import what is otherwise loaded on first use: drivers, migrations, the HTTP protocol, the event loop's backend.
for url in ("sqlite:///nowhere", "postgresql://nowhere/none"):
    uvicorn.Config(create_app(Database(url)), log_config=None).load()
schema.newest()
asyncio.run(anyio.sleep(0))
gc.collect()
gc.freeze()  # a forked process collects garbage when it serves; then it need not scan all modules
_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload([__name__])


class Forked:
    """A process that was started. It has the methods of `subprocess.Popen` that tests use.

    Its output is appended to the files `errors` and `output`. It kills itself when it calls the function `dies_at`,
    given as module and name.
    """

    def __init__(
        self,
        words: Sequence[object],
        *,
        errors: Path,
        output: Path = Path(os.devnull),
        dies_at: tuple[str, str] | None = None,
    ) -> None:
        self.args = ["vgpumgr-api", *map(str, words)]
        errors.touch()  # a test may read the file before the process has started
        self._process = _FORKS.Process(target=_run, args=(self.args[1:], output, errors, dies_at), daemon=True)
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        status = self._process.exitcode
        if status is None:
            assert timeout is not None
            raise subprocess.TimeoutExpired(self.args, timeout)
        return status

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def _run(words: list[str], output: Path, errors: Path, dies_at: tuple[str, str] | None) -> None:
    for path, stream in ((output, sys.stdout), (errors, sys.stderr)):
        with path.open("ab") as file:
            os.dup2(file.fileno(), stream.fileno())
    if dies_at is not None:
        module, name = dies_at
        setattr(import_module(module), name, lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL))
    sys.exit(main(words))
