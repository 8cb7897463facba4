# SPDX-License-Identifier: Apache-2.0
"""Authentication: tokens, people of an OIDC issuer, and certificates of hosts' agents with their authority.

`vgpumgr_api.actors` decides what an authenticated actor may reach.
"""
