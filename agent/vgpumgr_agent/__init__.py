# SPDX-License-Identifier: Apache-2.0
"""The host agent: makes a host's slices match the desired state, and admits VMs to them.

`reconcile` plans, `backends` act through the root helper (`helper`), `hooks` answers libvirt.
"""
