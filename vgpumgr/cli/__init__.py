# SPDX-License-Identifier: Apache-2.0
"""The `vgpumgr` command.

`main` registers the commands, and turns the exceptions they raise into one line and an exit status (`failures`).
`session` holds what every command receives: the API's client and the output format. Modules of this package import
nothing slow at module level. The functions that need models, HTTP or libvirt import them.
"""
