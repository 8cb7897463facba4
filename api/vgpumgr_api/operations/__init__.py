# SPDX-License-Identifier: Apache-2.0
"""Work that takes longer than a request, stored in the database. `vgpumgr_api.background.operating` advances it."""
