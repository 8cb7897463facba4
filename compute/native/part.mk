# SPDX-License-Identifier: Apache-2.0
# What starts a native program.  It is linked statically: a container has whatever libraries it has.

NATIVE := $(patsubst $(ROOT)/%.c,$(OUT)/%.o,$(wildcard $(ROOT)/compute/native/*.c))

PROGRAMS += $(OUT)/vgpu-native

$(OUT)/vgpu-native: $(NATIVE) $(OUT)/compute/executor/gate/fence_filter.o $(OUT)/compute/executor/gate/rm_numbers.o $(OUT)/compute/executor/datagram.o
	$(CC) $(CFLAGS) $(if $(SANITIZE),,-static) -o $@ $^
