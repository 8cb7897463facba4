# SPDX-License-Identifier: Apache-2.0
"""The broker (compute/broker) from outside: its configuration, its control socket, and programs that use it.

`configuration` reads the file that people write and makes the document that the broker accepts. `admission` asks the
scheduler's core whether the document can be enforced. `places` finds programs and sockets. `control` talks to a running
broker. `launch` starts a broker, and programs on a tenant's accelerator. `table` computes shares between two samples.
"""
