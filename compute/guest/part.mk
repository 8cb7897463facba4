# SPDX-License-Identifier: Apache-2.0
# The library that a program's OpenCL loader loads. It is never unloaded, because it has a thread and a fork handler.

GUEST_OBJECTS := $(patsubst $(ROOT)/%.c,$(OUT)/%.o,$(wildcard $(ROOT)/compute/guest/*/*.c))

$(OUT)/libvgpu-opencl.so: $(GUEST_OBJECTS)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) -shared -Wl,-z,defs,-z,nodelete -Wl,-soname,libvgpu-opencl.so.1 -o $@ $^

PROGRAMS += $(OUT)/libvgpu-opencl.so
