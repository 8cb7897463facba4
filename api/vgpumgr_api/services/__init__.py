# SPDX-License-Identifier: Apache-2.0
"""What the API decides: functions of a session, an actor and wire models; each runs inside one transaction.

Every function checks who may call it. `Database.run` gives the session, and repeats the whole function when the
database asks for it, so none has effects outside the database.
"""
