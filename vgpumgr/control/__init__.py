# SPDX-License-Identifier: Apache-2.0
"""Control of vgpumgr.ko on this host: its generic netlink family and its sysfs files.

`netlink.Control` reads GPUs, tenants and slices and sets tenants' parameters; `sysfs.Sysfs` binds GPUs, creates and
removes slices and grants permits. Both raise the exceptions of `vgpumgr.errors`, start no other process, and import
nothing but the standard library, so a short-lived helper starts fast.
"""
