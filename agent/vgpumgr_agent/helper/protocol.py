# SPDX-License-Identifier: Apache-2.0
"""The protocol of agent and helper: one JSON line each way, one exchange per connection (`line_socket`).

A request is ``{"v": 1, "op": OP, ...}``, the answer ``{"ok": true, ...}`` or
``{"ok": false, "code": CODE, "reason": TEXT}``. Codes are the frozen codes of `vgpumgr.errors` and the codes below.
"""

from enum import StrEnum

VERSION = 1
REQUEST_BYTES_MAX = 1 << 20
ANSWER_BYTES_MAX = 64 << 20
SOCKET_PATH = "/run/vgpumgr/helper.sock"


class Code(StrEnum):
    """Codes of the helper's own refusals."""

    REQUEST_INVALID = "request.invalid"
    REQUEST_TOO_LARGE = "request.too_large"
    PEER_REFUSED = "peer.refused"
    HELPER_BUSY = "helper.busy"
    MODULE_ABI = "module.abi"
    GPU_UNLISTED = "gpu.unlisted"
    GPU_ENGINE = "gpu.engine"
    GPU_WORKLOAD = "gpu.workload"
    BROKER_FAILED = "broker.failed"
    BROKER_REFUSED = "broker.refused"
    EXECUTOR_FAILED = "executor.failed"
    EXECUTOR_NEEDED = "executor.needed"
    SETTINGS_INVALID = "settings.invalid"
    HOST_UNWRITABLE = "host.unwritable"
    PERMIT_REFUSED = "permit.refused"
    RECORD_MISSING = "record.missing"
    SLICE_FOREIGN = "slice.foreign"
    SLICE_MISMATCH = "slice.mismatch"
    SLICE_OPEN = "slice.open"
    SLICE_PERMITTED = "slice.permitted"
    SLICE_REMOVING = "slice.removing"
    INTERNAL = "internal"
