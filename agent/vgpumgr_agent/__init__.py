# SPDX-License-Identifier: Apache-2.0
"""The host agent: makes a host's slices match the desired state. No code yet.

Only the walls stand: import-linter keeps ``reconcile -> backends -> hostpaths`` and keeps this
package and ``vgpumgr_api`` apart, so that the code finds them in place when it comes.
"""
