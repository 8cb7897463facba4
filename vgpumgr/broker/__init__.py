# SPDX-License-Identifier: Apache-2.0
"""The broker (compute/broker) from outside: its configuration, its control socket, and programs that use it.

`configuration` is the file that people write and the document that the broker takes; `admission` asks the scheduler's
core whether it can be kept; `places` says where programs and sockets are; `control` asks a running broker; `launch`
starts a broker, and programs with a tenant's accelerator; `table` says who had how much between two looks.
"""
