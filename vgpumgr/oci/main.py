# SPDX-License-Identifier: Apache-2.0
"""The entry point of `vgpumgr-oci`: parses the engine's request, adds the fence to files, and executes the runtime."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from vgpumgr.broker.places import launcher
from vgpumgr.errors import ContainerRefusedError, VgpumgrError
from vgpumgr.oci import bundle, files, host, settings
from vgpumgr.oci.commandline import Command, log, parse
from vgpumgr.oci.host import Given, tenant_of
from vgpumgr.oci.process import check_access, fenced

STATE_WITHIN_S = 60


class Wrapper:
    """One call of an engine. `root`: where this host's files are; only tests change it."""

    def __init__(self, env: Mapping[str, str], *, root: Path = Path("/"), own: Path = Path(sys.argv[0])) -> None:
        self.env = env
        self.root = root
        self.settings = settings.read(env, root)
        self.runtime = settings.runtime(self.settings, env, own)

    def prepare(self, command: Command) -> None:
        """Edit the command's files, so that every process it starts is fenced. VgpumgrError if that is not possible."""
        edits = {"create": self._create, "run": self._create, "restore": self._restore, "exec": self._execute}
        try:
            edits.get(command.name, lambda _: None)(command)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ContainerRefusedError(
                f"a file of the container does not follow the OCI specification: {type(error).__name__}: {error}"
            ) from None

    def _create(self, command: Command) -> None:
        path = _configuration(command)
        try:
            config = files.read(path)
        except FileNotFoundError:
            return  # the runtime reports the missing file
        if (named := _named(config)) is not None:
            files.replace(path, bundle.given_to(config, _bundle(command), self._given(*named)))

    def _restore(self, command: Command) -> None:
        try:
            config = files.read(_configuration(command))
        except FileNotFoundError:
            return
        if _named(config) is not None:
            raise ContainerRefusedError("a container with a GPU cannot be restored; start it again")

    def _execute(self, command: Command) -> None:
        if not command.rest:
            return  # the runtime reports the missing id
        state = self._state(command)
        if (named := _named(state)) is None:
            return
        if "--process" not in command.options or command.unseen or len(command.rest) != 1:
            raise ContainerRefusedError(
                "a process of a container with a GPU is started with `exec --process FILE ID`, so that it can be put"
                " behind the fence"
            )
        path = Path(command.options["--process"])
        try:
            process = files.read(path)
            config = files.read(Path(str(state.get("bundle"))) / "config.json")
        except FileNotFoundError as error:
            raise ContainerRefusedError(f"{error.filename} does not exist") from None
        edited = fenced(process, where=path.name)
        linux = config.get("linux") if isinstance(config, dict) else None
        check_access(edited, linux if isinstance(linux, dict) else {}, self._given(*named))
        files.replace(path, edited)

    def _state(self, command: Command) -> dict[str, Any]:
        """Ask the runtime for a container's state. Refuse if there is no answer: the process may need the fence."""
        asked = [self.runtime, *command.before, "state", command.rest[0]]
        said = ""
        try:
            answer = subprocess.run(asked, capture_output=True, timeout=STATE_WITHIN_S)
            said = answer.stderr.decode(errors="replace").strip()[-500:]
            if answer.returncode == 0 and isinstance(found := json.loads(answer.stdout), dict):
                return found
        except (OSError, ValueError, subprocess.TimeoutExpired) as error:
            said = said or str(error)
        raise ContainerRefusedError(f"{self.runtime} did not return the container's state: {said}")

    def _given(self, tenant: str, gpu: str) -> Given:
        if Path(self.runtime).name.startswith("nvidia-container-runtime"):
            raise ContainerRefusedError(f"{self.runtime} would add devices; name runc or crun as the runtime")
        directories = self.settings.run_directories
        return host.find(tenant, gpu, directories, launcher(), self.root, host.loader_cache())


def _named(config: Any) -> tuple[str, str] | None:
    return tenant_of(config.get("annotations") if isinstance(config, dict) else None)


def _bundle(command: Command) -> Path:
    return Path(command.options.get("--bundle", "."))


def _configuration(command: Command) -> Path:
    return _bundle(command) / command.options.get("--config", "config.json")


def complain(error: VgpumgrError, arguments: Sequence[str]) -> None:
    """Report the error where engines look: on standard error, and in the log that the engine named."""
    said = " ".join(f"vgpumgr: {error.code}: {error}".split())
    print(said, file=sys.stderr)
    path, form = log(arguments)
    if not path:
        return
    at = datetime.now(UTC).isoformat(timespec="seconds")
    if form == "json":
        line = json.dumps({"level": "error", "msg": said, "time": at})
    else:
        line = f'time="{at}" level=error msg={json.dumps(said)}'
    try:
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(line + "\n")
    except OSError:
        pass


def main(arguments: Sequence[str], env: Mapping[str, str], *, root: Path = Path("/")) -> int:
    """Execute the real runtime in place of this process; return an exit status on failure."""
    try:
        command = parse(arguments)
        wrapper = Wrapper(env, root=root)
        wrapper.prepare(command)
        os.execve(wrapper.runtime, [wrapper.runtime, *arguments], dict(env))
    except VgpumgrError as error:
        complain(error, arguments)
    except OSError as error:
        complain(ContainerRefusedError((error.strerror or str(error)).lower()), arguments)
    return 1


def run() -> None:
    """The entry point."""
    sys.exit(main(sys.argv[1:], os.environ))
