# SPDX-License-Identifier: Apache-2.0
"""What the kernel takes of a tenant's and a slice's parameters, from kmod/uapi/vgpumgr.yaml, and the unit of shares.

Whoever checks such a parameter before the kernel does takes its range from here. 0 is no cap and no reservation.
"""

from vgpumgr.control.protocol import GPU, TENANT, GpuAttribute, TenantAttribute

PERMILLE = 1000
"""All of one GPU's time, in the unit of shares."""
WEIGHT_MIN, WEIGHT_MAX = TENANT.bounds[TenantAttribute.WEIGHT]
TIMESLICE_US_MIN = 10
"""On every GPU; each has a `timeslice_min_us` of its own, which is no less."""
TIMESLICE_US_MAX = TENANT.bounds[TenantAttribute.TIMESLICE_US][1]
CAP_PERIOD_US_MIN, CAP_PERIOD_US_MAX = TENANT.bounds[TenantAttribute.CAP_PERIOD_US]
BURST_US_MAX = TENANT.bounds[TenantAttribute.BURST_US][1]
RESERVE_PERIOD_US_MIN = 100
"""On every GPU; it is also at least four `max_chunk_us`."""
RESERVE_PERIOD_US_MAX = TENANT.bounds[TenantAttribute.RESERVE_PERIOD_US][1]
HOLD_US_MAX = TENANT.bounds[TenantAttribute.HOLD_MAX_US][1]
CHUNK_US_MIN, CHUNK_US_MAX = GPU.bounds[GpuAttribute.MAX_CHUNK_US]
RESERVE_LIMIT_PERMILLE_MAX = GPU.bounds[GpuAttribute.RESERVE_LIMIT_PERMILLE][1]
