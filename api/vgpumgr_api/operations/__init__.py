# SPDX-License-Identifier: Apache-2.0
"""Work that takes longer than a request, kept in the database. `vgpumgr_api.background.operating` advances it."""
