# SPDX-License-Identifier: Apache-2.0
# Messages, stubs, table and grammar of each described API. Objects depend on GENERATED.

GENERATED := $(OUT)/generated/stamp
$(GENERATED): $(wildcard $(ROOT)/compute/api/*.py)
	cd $(ROOT) && $(PYTHON) -m compute.api.generate $(@D)
	@touch $@

PROGRAMS += $(GENERATED)
