# SPDX-License-Identifier: Apache-2.0
# The library that a program's OpenCL loader loads.  It stays loaded: it has a thread and a handler of forks.

GUEST_OBJECTS := $(patsubst $(ROOT)/%.c,$(OUT)/%.o,$(wildcard $(ROOT)/compute/guest/*/*.c))

$(OUT)/libvgpu-opencl.so: $(GUEST_OBJECTS)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) -shared -Wl,-z,defs,-z,nodelete -Wl,-soname,libvgpu-opencl.so.1 -o $@ $^

PROGRAMS += $(OUT)/libvgpu-opencl.so
