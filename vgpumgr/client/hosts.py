# SPDX-License-Identifier: Apache-2.0
"""Hosts, operators' actions on them, and their GPUs."""

from collections.abc import Iterator
from uuid import UUID

from vgpumgr.client.calls import Calls, trial, yes
from vgpumgr.client.transport import Match, segment
from vgpumgr.wire.operations import GpuRehome, HostDrain, Operation
from vgpumgr.wire.resources import Gpu, GpuPatch, Host, HostCreate, HostCreated, HostFence, HostPatch


class HostCalls(Calls):
    """Part of Client."""

    def hosts(
        self,
        *,
        state: str | None = None,
        online: bool | None = None,
        enrolled: bool | None = None,
        fenced: bool | None = None,
        epoch_confirmed: bool | None = None,
        selector: str | None = None,
    ) -> Iterator[Host]:
        """Hosts, ordered by name. `selector`: only those with all of these labels, as in ``zone=a,rack=7``."""
        whether = {"online": online, "enrolled": enrolled, "fenced": fenced, "epoch_confirmed": epoch_confirmed}
        asked = {name: yes(wanted) for name, wanted in whether.items()}
        return self._pages("/v1/hosts", Host, state=state, selector=selector, **asked)

    def host(self, name: str) -> Host:
        return self._get(f"/v1/hosts/{segment(name)}", Host)

    def create_host(self, host: HostCreate, *, idempotency_key: str | None = None) -> HostCreated:
        """Create a host. ApiError ``secret.shown`` if this key created one already; `reenroll` then gives a token."""
        # The API shows a secret only once, so a request whose answer contains a secret is never repeated.
        return self._post("/v1/hosts", HostCreated, host, idempotency_key=idempotency_key, repeatable=False)

    def patch_host(self, name: str, patch: HostPatch, *, if_match: Match, validate_only: bool = False) -> Host:
        return self._patch(f"/v1/hosts/{segment(name)}", Host, patch, if_match, validate_only=validate_only)

    def delete_host(self, name: str, *, if_match: Match, validate_only: bool = False) -> None:
        self._delete(f"/v1/hosts/{segment(name)}", if_match, validate_only=validate_only)

    def confirm_epoch(self, name: str, *, if_match: Match | None = None, validate_only: bool = False) -> Host:
        """Confirm a host's epoch. `if_match`: the ETag of the compared state of the host, valid in one epoch only."""
        path, params = f"/v1/hosts/{segment(name)}:confirm-epoch", trial(validate_only)
        return self._post(path, Host, if_match=if_match, params=params)

    def cordon(self, name: str, *, if_match: Match, validate_only: bool = False) -> Host:
        return self._host_action(name, "cordon", if_match, validate_only)

    def uncordon(self, name: str, *, if_match: Match, validate_only: bool = False) -> Host:
        return self._host_action(name, "uncordon", if_match, validate_only)

    def maintenance(self, name: str, *, if_match: Match, validate_only: bool = False) -> Host:
        return self._host_action(name, "maintenance", if_match, validate_only)

    def _host_action(self, name: str, verb: str, if_match: Match, validate_only: bool) -> Host:
        path, params = f"/v1/hosts/{segment(name)}:{verb}", trial(validate_only)
        return self._post(path, Host, if_match=if_match, params=params, repeatable=False)

    def drain_host(
        self,
        name: str,
        drain: HostDrain,
        *,
        if_match: Match,
        idempotency_key: str | None = None,
        validate_only: bool = False,
    ) -> Operation:
        options = {"if_match": if_match, "idempotency_key": idempotency_key, "params": trial(validate_only)}
        return self._post(f"/v1/hosts/{segment(name)}:drain", Operation, drain, **options)

    def fence(self, name: str, fence: HostFence, *, if_match: Match, validate_only: bool = False) -> Host:
        path, params = f"/v1/hosts/{segment(name)}:fence", trial(validate_only)
        return self._post(path, Host, fence, if_match=if_match, params=params, repeatable=False)

    def reenroll(self, name: str, *, idempotency_key: str | None = None) -> HostCreated:
        path = f"/v1/hosts/{segment(name)}:reenroll"
        return self._post(path, HostCreated, idempotency_key=idempotency_key, repeatable=False)

    def gpus(
        self,
        *,
        host: str | None = None,
        host_state: str | None = None,
        present: bool | None = None,
        selector: str | None = None,
    ) -> Iterator[Gpu]:
        """GPUs, ordered by host and address. `selector`: as for hosts; a GPU also has the labels of its host."""
        wanted = {"host": host, "host_state": host_state, "present": yes(present), "selector": selector}
        return self._pages("/v1/gpus", Gpu, **wanted)

    def gpu(self, gpu_id: UUID) -> Gpu:
        return self._get(f"/v1/gpus/{gpu_id}", Gpu)

    def patch_gpu(self, gpu_id: UUID, patch: GpuPatch, *, if_match: Match, validate_only: bool = False) -> Gpu:
        return self._patch(f"/v1/gpus/{gpu_id}", Gpu, patch, if_match, validate_only=validate_only)

    def rehome_gpu(
        self,
        gpu_id: UUID,
        rehome: GpuRehome,
        *,
        if_match: Match,
        idempotency_key: str | None = None,
        validate_only: bool = False,
    ) -> Operation:
        """Move the claims of a GPU that is gone to another GPU of its host."""
        options = {"if_match": if_match, "idempotency_key": idempotency_key, "params": trial(validate_only)}
        return self._post(f"/v1/gpus/{gpu_id}:rehome", Operation, rehome, **options)
