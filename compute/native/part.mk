# SPDX-License-Identifier: Apache-2.0
# The launcher of native programs. It is linked statically, so that it runs with any container's libraries.

NATIVE := $(patsubst $(ROOT)/%.c,$(OUT)/%.o,$(wildcard $(ROOT)/compute/native/*.c))

PROGRAMS += $(OUT)/vgpu-native

$(OUT)/vgpu-native: $(NATIVE) $(OUT)/compute/executor/fence/filter.o $(OUT)/compute/executor/fence/rm_numbers.o $(OUT)/compute/executor/datagram.o
	$(CC) $(CFLAGS) $(if $(SANITIZE),,-static) -o $@ $^
