# SPDX-License-Identifier: Apache-2.0
"""The host agent: makes a host's slices match the desired state, and admits VMs to them.

`reconcile` plans, `backends` carry out the plan through the root helper (`helper`), and `hooks` answers libvirt.
"""
