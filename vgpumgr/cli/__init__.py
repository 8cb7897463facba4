# SPDX-License-Identifier: Apache-2.0
"""The `vgpumgr` command.

`main` puts the commands together and turns what they raise into one line and an exit status (`failures`). `session` is
what a command is given: where the API is, how to print. Modules here import nothing at their top that costs time:
models, HTTP and libvirt are imported by the functions that need them.
"""
