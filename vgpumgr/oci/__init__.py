# SPDX-License-Identifier: Apache-2.0
"""`vgpumgr-oci`: an OCI runtime that gives a container a tenant's GPU, with the fence before each of its processes.

It stands between a container engine and the real runtime. `commandline` understands what the engine asks for, `host`
finds what a tenant's container is given, `bundle` and `process` say what is refused and write the rest into the
container's files, `syscalls` keeps the container from putting another program in the launcher's place, and `main` ends
as the real runtime. A container without our annotation is left alone.
"""
