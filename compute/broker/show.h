/* SPDX-License-Identifier: Apache-2.0 */
/* Writes the broker's state as one JSON object on one line; times in ns. */
#ifndef VGPU_BROKER_SHOW_H
#define VGPU_BROKER_SHOW_H

#include <stdio.h>

#include "broker/broker.h"

void show(struct broker *broker, FILE *file);

#endif /* VGPU_BROKER_SHOW_H */
