# SPDX-License-Identifier: Apache-2.0
"""Who somebody is: tokens, people of an OIDC issuer, and certificates of hosts' agents with their authority.

What an actor may then reach is decided in `vgpumgr_api.actors`.
"""
