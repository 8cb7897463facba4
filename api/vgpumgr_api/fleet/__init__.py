# SPDX-License-Identifier: Apache-2.0
"""Hosts and GPUs, for operators and for hosts' agents: enrolment, desired state, reports, draining and fencing."""
