# SPDX-License-Identifier: Apache-2.0
"""`vgpumgr-oci`: an OCI runtime that gives a container a tenant's GPU, with the fence before each of its processes.

It stands between a container engine and the real runtime. `commandline` parses the engine's request. `host` finds the
files that a tenant's container needs. `bundle` and `process` refuse unsafe settings, and write the rest into the
container's files. `syscalls` keeps the container from replacing the launcher. `main` ends by executing the real
runtime. A container without our annotation is left alone.
"""
