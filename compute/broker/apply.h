/* SPDX-License-Identifier: Apache-2.0 */
/* Apply a configuration completely, or not at all. */
#ifndef VGPU_BROKER_APPLY_H
#define VGPU_BROKER_APPLY_H

#include "broker/broker.h"

/**
 * apply() - apply a configuration to the broker
 * @settings: moved into the broker if the configuration is accepted; else still the
 *	caller's
 *
 * Tenants that are not in the configuration are removed, with their children.  New tenants are
 * added.  For the other tenants, new terms apply from the present lease on.  New values for memory,
 * windows and programs apply only to children that start later.
 *
 * Return: whether the configuration is accepted; if not, @fault says why and nothing has changed.
 */
bool apply(struct broker *broker, struct settings *settings, struct settings_fault *fault);

#endif /* VGPU_BROKER_APPLY_H */
