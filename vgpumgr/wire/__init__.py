# SPDX-License-Identifier: Apache-2.0
"""What travels between control plane, API, host agent and CLI, as pydantic models.

`common` the words all share, `resources` what tenants and operators see, `fleet` what hosts and API tell each other,
`problem` how a refusal looks. Unknown members of a request are refused, those of an answer ignored, so that a newer
API serves an older client.
"""
