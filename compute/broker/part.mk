# SPDX-License-Identifier: Apache-2.0
# The broker, linked with the scheduler's core.

BROKER_OBJECTS := $(patsubst $(ROOT)/%.c,$(OUT)/%.o,\
	$(wildcard $(ROOT)/compute/broker/*.c) $(wildcard $(ROOT)/kmod/sched/*.c) \
	$(filter-out %/options.c,$(wildcard $(ROOT)/compute/executor/*.c)))

PROGRAMS += $(OUT)/vgpu-broker

$(OUT)/vgpu-broker: $(BROKER_OBJECTS)
	$(CC) $(CFLAGS) -o $@ $^
