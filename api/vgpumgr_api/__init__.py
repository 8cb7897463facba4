# SPDX-License-Identifier: Apache-2.0
"""The REST service: tenants, quotas, placement, claims, and what hosts shall have.

A request comes in through `edge`; its route in `routes` calls one function of a domain in one transaction, and `db`
stores. The domains: `tenancy`, `placement`, `claims`, `fleet`, `operations`, `usage`, `events`, `auth` and
`installation`; `resources` is what they share. A domain's functions take a session, an actor (`actors`: who asks, and
what they may reach) and wire models, and each checks who may call it. `Database.run` gives the session, and repeats the
whole function when the database asks for it, so none has effects outside the database. `background` is what the API
does without being asked. Import rules (pyproject.toml) hold which package may use which.
"""
