# SPDX-License-Identifier: Apache-2.0
"""Brokers of GPUs that are set aside for processes: one per GPU. Each claim is a tenant, named by the claim's UUID.

Each broker has a directory below /run. In it, `claims.json` has the admitted claims, and `broker.toml` is the broker's
configuration, made from these claims. The file `applied` exists while the broker is known to use that configuration.
The broker's sockets are there too. The files are written before the broker is changed, so a killed helper leaves
everything that the next helper needs. A boot deletes the directory, and the agent has it created again. A configuration
that the broker refuses is rolled back.
"""

import json
import logging
import shutil
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from vgpumgr.broker.control import Control
from vgpumgr.control.executor_settings import ExecutorSettingsError, HostSettings, load
from vgpumgr.errors import VgpumgrError
from vgpumgr_agent import faults
from vgpumgr_agent.files import write_durably
from vgpumgr_agent.helper.broker_services import BrokerFailedError, BrokerRefusedError, Service
from vgpumgr_agent.helper.protocol import Code
from vgpumgr_agent.refused import Refused

log = logging.getLogger(__name__)

_CLAIMS, CONFIGURATION, _APPLIED = "claims.json", "broker.toml", "applied"
_MEMORY_MIN_BYTES = 1 << 20
"""The least memory of a tenant of the broker."""


@dataclass(frozen=True, kw_only=True)
class Terms:
    """A claim's terms on its GPU. `cap_us` 0: no cap."""

    uuid: str
    tenant: str
    weight: int
    cap_us: int
    cap_period_us: int
    timeslice_us: int
    mem_bytes: int


@dataclass(frozen=True, kw_only=True)
class Admitted:
    """The intended state of a GPU's broker. `nvidia`, `socket_group`: root's settings when a claim was last admitted.

    `retired_ns`: GPU time of claims that are gone, by tenant, for tenants that have other claims. It counts only for
    the broker that started at `started_ns`.
    """

    nvidia: int = 0
    socket_group: str = ""
    claims: Mapping[str, Terms] = field(default_factory=dict)
    started_ns: int = 0
    retired_ns: Mapping[str, int] = field(default_factory=dict)

    def without(self, uuid: str, shown: Mapping[str, Any] | None) -> "Admitted":
        """Return the state without a claim. `shown`: the state that the broker reports, or None."""
        left = {name: terms for name, terms in self.claims.items() if name != uuid}
        named = {terms.tenant for terms in left.values()}
        retired = dict(self.retired_ns) if shown and shown["started_ns"] == self.started_ns else {}
        gone, tenant = self.claims.get(uuid), _tenants(shown).get(uuid)
        if gone is not None and tenant is not None:
            retired[gone.tenant] = retired.get(gone.tenant, 0) + _tenant(uuid, tenant)["run_ns"]
        return replace(
            self,
            claims=left,
            started_ns=int(shown["started_ns"]) if shown else 0,
            retired_ns={name: ns for name, ns in retired.items() if name in named},
        )


class Brokers:
    """All brokers of this host. Threads may share it; changes are serialised."""

    def __init__(self, directory: Path, settings: Path, service: Service) -> None:
        """`directory`: the parent of the brokers' directories; `settings`: the file in which root sets GPUs aside."""
        self._directory = directory
        self._settings_file = settings
        self._service = service
        self._changing = threading.Lock()

    def set_aside(self) -> frozenset[str]:
        """Return the GPUs that are set aside for processes, or none if the settings cannot be read."""
        try:
            return self._settings().for_processes()
        except Refused:
            return frozenset()

    def admit(self, *, gpu: str, claims: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Make a GPU's broker run with these claims among its tenants.

        Raises Refused, and then nothing has changed. The code is `broker.refused` if the terms of a claim are the
        reason.
        """
        settings = self._settings().of(gpu)
        if gpu not in self._settings().for_processes():
            where = self._settings_file
            raise Refused(Code.GPU_WORKLOAD, f'GPU {gpu} is for VMs: {where} sets no workload = "process"')
        wanted = {terms["uuid"]: Terms(**terms) for terms in claims}
        with self._changing:
            directory = self._directory / gpu
            before = _admitted(directory)
            after = replace(
                before,
                nvidia=settings.executor.nvidia or 0,
                socket_group=settings.socket_group,
                claims={**before.claims, **wanted},
            )
            running = _shown(directory) is not None
            if after == before and running and (directory / _APPLIED).exists():
                return {"changed": False}
            directory.mkdir(mode=0o755, parents=True, exist_ok=True)
            self._change(gpu, before, after, running=running)
            return {"changed": True}

    def dismiss(self, *, uuid: str) -> dict[str, Any]:
        """Remove a claim from all brokers, which ends its programs. Raises Refused."""
        with self._changing:
            changed = False
            for directory in self._all():
                before, shown = _admitted(directory), _shown(directory)
                if uuid not in before.claims and uuid not in _tenants(shown):
                    continue
                self._leave(directory, before, before.without(uuid, shown), running=shown is not None)
                changed = True
            return {"changed": changed}

    def all(self) -> list[dict[str, Any]]:
        """Return every broker that should run, with its claims, for the answer to `observe`."""
        return [self._found(directory) for directory in self._all()]

    def _all(self) -> list[Path]:
        return sorted(path.parent for path in self._directory.glob(f"*/{_CLAIMS}"))

    def _leave(self, directory: Path, before: Admitted, after: Admitted, *, running: bool) -> None:
        """Remove a claim from one broker.

        A broker without remaining claims is stopped. A broker that does not answer is stopped, too, because it may
        still have programs, which end with it. The remaining claims get a new broker later.
        """
        gpu = directory.name
        if running and after.claims:
            self._change(gpu, before, after, running=True)
            return
        try:
            self._service.stop(gpu, directory)
        except BrokerFailedError as error:
            raise _failed(gpu, error) from error
        if after.claims:
            _write(directory, after)
        else:
            shutil.rmtree(directory)

    def _change(self, gpu: str, before: Admitted, after: Admitted, *, running: bool) -> None:
        directory = self._directory / gpu
        had_it = running and (directory / _APPLIED).exists()
        try:
            _write(directory, after)
            self._service.carry_out(gpu, directory, running=running)
        except (BrokerFailedError, OSError) as error:
            with suppress(OSError, BrokerFailedError):
                self._take_back(directory, before, has_it=had_it and isinstance(error, BrokerRefusedError))
            raise _failed(gpu, error) from error
        (directory / _APPLIED).touch()
        faults.point("broker.applied")

    def _take_back(self, directory: Path, before: Admitted, *, has_it: bool) -> None:
        """Restore the state `before`. `has_it`: the broker still uses that state, because it refused the change."""
        if before.claims:
            _write(directory, before)
        else:
            self._service.stop(directory.name, directory)
            shutil.rmtree(directory)
        if has_it:
            (directory / _APPLIED).touch()

    def _found(self, directory: Path) -> dict[str, Any]:
        admitted, shown = _admitted(directory), _shown(directory)
        started_ns = int(shown["started_ns"]) if shown else 0
        return {
            "gpu": directory.name,
            "running": shown is not None,
            "current": (directory / _APPLIED).exists(),
            "reason": "" if shown is not None else self._service.why(directory.name, directory),
            "started_ns": started_ns,
            "wall_ns": int(shown["now_ns"]) - started_ns if shown else 0,
            "retired_ns": admitted.retired_ns if started_ns == admitted.started_ns else {},
            "claims": [asdict(terms) for terms in admitted.claims.values()],
            "tenants": [_tenant(name, each) for name, each in sorted(_tenants(shown).items())],
        }

    def _settings(self) -> HostSettings:
        try:
            return load(self._settings_file, trusted=True)
        except ExecutorSettingsError as error:
            raise Refused(Code.SETTINGS_INVALID, str(error)) from error


def configuration(admitted: Admitted, *, run_directory: Path) -> str:
    """Return the configuration file for `vgpumgr broker`, see docs/compute.md. No name or path here needs escapes."""
    lines = [f'run_directory = "{run_directory}"', "[accelerator]", f"nvidia = {admitted.nvidia}"]
    for name, terms in sorted(admitted.claims.items()):
        lines += [
            f'[tenants."{name}"]',
            "native = true",
            f"weight = {terms.weight}",
            f"timeslice_us = {terms.timeslice_us}",
            f"memory = {max(terms.mem_bytes, _MEMORY_MIN_BYTES)}",
        ]
        if terms.cap_us:
            lines += [
                f"cap_permille = {-(-1000 * terms.cap_us // terms.cap_period_us)}",
                f"cap_period_us = {terms.cap_period_us}",
            ]
        if admitted.socket_group:
            lines += ['socket_mode = "0660"', f'socket_group = "{admitted.socket_group}"']
    return "".join(f"{line}\n" for line in lines)


def _write(directory: Path, admitted: Admitted) -> None:
    (directory / _APPLIED).unlink(missing_ok=True)
    if admitted.claims:
        write_durably(directory / CONFIGURATION, configuration(admitted, run_directory=directory))
    said = {**asdict(admitted), "claims": [asdict(each) for each in admitted.claims.values()]}
    write_durably(directory / _CLAIMS, json.dumps(said) + "\n")
    faults.point("broker.written")


def _failed(gpu: str, error: BrokerFailedError | OSError) -> Refused:
    reason = (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
    code = Code.BROKER_REFUSED if isinstance(error, BrokerRefusedError) else Code.BROKER_FAILED
    return Refused(code, f"the broker of GPU {gpu}: {reason}")


def _admitted(directory: Path) -> Admitted:
    """Return the admitted claims, or none if the file is damaged: the agent then has the claims admitted again."""
    try:
        said = json.loads((directory / _CLAIMS).read_bytes())
        return Admitted(**{**said, "claims": {each["uuid"]: Terms(**each) for each in said["claims"]}})
    except FileNotFoundError:
        return Admitted()
    except (ValueError, TypeError, KeyError) as error:
        log.warning("%s: %s", directory / _CLAIMS, error)
        return Admitted()


def _shown(directory: Path) -> dict[str, Any] | None:
    """Return the broker's state, or None if no broker answers."""
    try:
        return Control(directory).show()
    except VgpumgrError:
        return None


def _tenants(shown: Mapping[str, Any] | None) -> dict[str, Mapping[str, Any]]:
    """Return the tenants that are not leaving."""
    return {} if shown is None else {str(each["name"]): each for each in shown["tenants"] if not each["leaving"]}


def _tenant(name: str, said: Mapping[str, Any]) -> dict[str, Any]:
    native = said.get("native", {})
    return {
        "uuid": name,
        "ready": said["supervisor"]["state"] == "up",
        "programs": int(native.get("programs", 0)),
        "run_ns": int(native.get("obtained_ns", 0)) + int(said["stats"]["leased_ns"]),
        "leases": int(said["stats"]["leases"]),
        "memory_used_bytes": int(native.get("memory_used_bytes", 0)),
        "enforced_by": str(said["supervisor"].get("enforced_by", ""))[:32],
    }
