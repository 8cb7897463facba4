# SPDX-License-Identifier: Apache-2.0
"""Settings shared by all tests, also those that run inside a lab host without hypothesis."""

import contextlib

with contextlib.suppress(ImportError):
    from hypothesis import settings

    # Other work may share the cores: an example that takes long is not a failure.
    settings.register_profile("vgpumgr", deadline=None, print_blob=True)
    settings.load_profile("vgpumgr")
