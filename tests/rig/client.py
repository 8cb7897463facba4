# SPDX-License-Identifier: Apache-2.0
"""`vgpu-client`: a VFIO client in user space, for tests where real guests would be too slow or too many."""

import json
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tests.rig.kernel import PATIENCE

Report = dict[str, Any]


class ClientFailedError(AssertionError):
    """The client ended differently than expected; the text has its output."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """A client that has ended. `reports`: its JSON lines in order."""

    status: int
    reports: list[Report]
    output: str

    def report(self, key: str, value: object) -> Report:
        """The last record whose `key` is `value`."""
        for report in reversed(self.reports):
            if report.get(key) == value:
                return report
        raise ClientFailedError(f"no record with {key}={value!r} in:\n{self.output}")


class Client:
    """A running client. Its stdin stays open so that `hold` holds."""

    def __init__(self, arguments: Sequence[str]) -> None:
        self.arguments = ["vgpu-client", *arguments]
        self.process = subprocess.Popen(
            self.arguments,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def line(self) -> str:
        """Return the next line of output; blocks."""
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def end(self) -> None:
        """Make it finish the queued items of all its slices and report; harmless when it has ended."""
        self.process.send_signal(signal.SIGTERM)

    def stop(self) -> None:
        """Stop the process until `resume`, whatever happens to it."""
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """Kill it; harmless when it has ended."""
        self.process.kill()
        self.process.communicate()

    def wait(self, *, timeout_s: float = 300, expected: Sequence[int] = (0,)) -> Outcome:
        """Wait for its end; raises ClientFailedError with its output when the status is none of `expected`."""
        try:
            output, _ = self.process.communicate(timeout=timeout_s * PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            output, _ = self.process.communicate()
            raise ClientFailedError(f"{self.arguments}: still running after {timeout_s} s:\n{output}") from None
        if self.process.returncode not in expected:
            raise ClientFailedError(f"{self.arguments}: exit status {self.process.returncode}:\n{output}")
        reports = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
        return Outcome(status=self.process.returncode, reports=reports, output=output)


def client(*arguments: str, timeout_s: float = 300, expected: Sequence[int] = (0,)) -> Outcome:
    """Run a client to its end."""
    return Client(["--json", *arguments]).wait(timeout_s=timeout_s, expected=expected)


def slice_option(uuid: str, **options: object) -> str:
    """One `--slice` argument: `slice_option(uuid, op="delay", delay_us=200, nosplit=True)`."""
    words = [uuid]
    for key, value in options.items():
        name = key.replace("_", "-")
        words.append(name if value is True else f"{name}={value}")
    return ",".join(words)
