# SPDX-License-Identifier: Apache-2.0
"""The messages between control plane, API, host agent and CLI, as pydantic models.

`common` has the shared types, `resources` the objects that tenants and operators see, `fleet` the messages between
hosts and API, and `problem` the form of a refusal. Unknown members of a request are refused. Unknown members of an
answer are ignored, so a newer API can serve an older client.
"""
