# SPDX-License-Identifier: Apache-2.0
"""Settings of all tests. They also apply to tests that run inside a lab host without hypothesis."""

import contextlib

with contextlib.suppress(ImportError):
    from hypothesis import settings

    # Other programs may share the processors, so a slow example is not a failure.
    settings.register_profile("vgpumgr", deadline=None, print_blob=True)
    settings.load_profile("vgpumgr")
