# SPDX-License-Identifier: Apache-2.0
"""The REST service: tenants, quotas, placement, claims, and the desired state of hosts.

A request enters through `edge`. Its route in `routes` calls one function of a domain in one transaction; `db` stores
the result. The domains are `tenancy`, `placement`, `claims`, `fleet`, `operations`, `usage`, `events`, `auth` and
`installation`; they share `resources`. A domain's functions take a session, an actor (see `actors`) and wire models.
Each function checks whether the actor may call it. `Database.run` supplies the session and repeats the whole function
when the database asks for a retry, so no such function has effects outside the database. `background` is the work that
the API does without a request. The import rules in pyproject.toml say which package may use which.
"""
