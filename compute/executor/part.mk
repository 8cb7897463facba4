# SPDX-License-Identifier: Apache-2.0
# The host's side of a slice: vgpu-supervisor and vgpu-child, and vgpu-executor for a VM's slice.

EXECUTOR := $(OUT)/compute/executor
EXECUTOR_SANDBOX := $(patsubst $(ROOT)/%.c,$(OUT)/%.o,$(wildcard $(ROOT)/compute/executor/sandbox/*.c))
EXECUTOR_CHILD := $(patsubst $(ROOT)/%.c,$(OUT)/%.o,$(wildcard $(ROOT)/compute/executor/child/*.c))
EXECUTOR_OPENCL := $(if $(wildcard $(ROOT)/compute/executor/opencl/backend.c),$(patsubst $(ROOT)/%.c,$(OUT)/%.o,$(wildcard $(ROOT)/compute/executor/opencl/*.c)))
# The scheduler core's predictor learns the durations of kernels.  A child does not use the arbiter.
EXECUTOR_CORE := $(patsubst $(ROOT)/%.c,$(OUT)/%.o,$(filter-out %/watch.c $(wildcard $(ROOT)/kmod/sched/arbiter*.c),\
	$(wildcard $(ROOT)/kmod/sched/*.c)))
EXECUTOR_SUPERVISOR := $(patsubst $(ROOT)/%.c,$(OUT)/%.o,\
	$(wildcard $(addprefix $(ROOT)/compute/executor/,supervisor/*.c gate/*.c fence/*.c)))

# Code that the broker and vgpu-executor share, and options.c, which the broker does not use.
EXECUTOR_COMMON := $(patsubst $(ROOT)/%.c,$(OUT)/%.o,$(wildcard $(ROOT)/compute/executor/*.c))
EXECUTOR_SLICE := $(patsubst $(ROOT)/%.c,$(OUT)/%.o,$(wildcard $(ROOT)/compute/executor/slice/*.c))

EXECUTOR_PROGRAMS := $(OUT)/vgpu-child $(OUT)/vgpu-supervisor $(OUT)/vgpu-executor
PROGRAMS += $(EXECUTOR_PROGRAMS)

.PHONY: install-executor
install-executor: $(EXECUTOR_PROGRAMS)
	install -d $(DESTDIR)$(LIBDIR)
	install -m 0755 $^ $(DESTDIR)$(LIBDIR)

$(OUT)/vgpu-child: $(EXECUTOR)/log.o $(EXECUTOR)/options.o $(EXECUTOR_SANDBOX) $(EXECUTOR_CHILD) \
		$(EXECUTOR_OPENCL) $(EXECUTOR_CORE)
	$(CC) $(CFLAGS) -o $@ $^ -ldl

$(OUT)/vgpu-supervisor: $(EXECUTOR)/log.o $(EXECUTOR)/header.o $(EXECUTOR)/notice.o $(EXECUTOR)/options.o \
		$(EXECUTOR_SANDBOX) $(EXECUTOR_SUPERVISOR)
	$(CC) $(CFLAGS) -o $@ $^

$(OUT)/vgpu-executor: $(EXECUTOR_COMMON) $(EXECUTOR_SLICE)
	$(CC) $(CFLAGS) -o $@ $^
