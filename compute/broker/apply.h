/* SPDX-License-Identifier: Apache-2.0 */
/* Carry a configuration out: all of it, or nothing. */
#ifndef VGPU_BROKER_APPLY_H
#define VGPU_BROKER_APPLY_H

#include "broker/broker.h"

/**
 * apply() - make the broker be as a configuration says
 * @settings: taken over if the configuration is accepted; else still the caller's
 *
 * Tenants that are not in it are removed, with their children; new ones are added;
 * the others are changed, from their children's present lease on.  Memory, windows
 * and programs count for children that start later.
 *
 * Return: whether it is accepted; if not, @fault says why and nothing has changed.
 */
bool apply(struct broker *broker, struct settings *settings, struct settings_fault *fault);

#endif /* VGPU_BROKER_APPLY_H */
