# SPDX-License-Identifier: Apache-2.0
"""The HTTP client and the `vgpumgr` command, against an API that answers with the wire models."""
