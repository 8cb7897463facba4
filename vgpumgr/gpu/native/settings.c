// SPDX-License-Identifier: Apache-2.0
/* Settings from the environment. An invalid setting is reported and has no effect. */
#define _GNU_SOURCE
#include "shim.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

static _Atomic uint32_t timeslice;
static enum preemption preemption = PREEMPTION_PASS;
static const char *log_path;
static const char *control_prefix;

uint32_t settings_timeslice_us(void)
{
	return atomic_load(&timeslice);
}

void settings_set_timeslice_us(uint32_t timeslice_us)
{
	atomic_store(&timeslice, timeslice_us);
}

enum preemption settings_preemption(void)
{
	return preemption;
}

const char *settings_log_path(void)
{
	return log_path;
}

const char *settings_control_prefix(void)
{
	return control_prefix;
}

/* Accepts only decimal digits, because strtoul() would accept signs and blanks. */
bool settings_parse_timeslice(const char *text, uint32_t *timeslice_us)
{
	unsigned long value;

	if (*text == '\0' || strspn(text, "0123456789") != strlen(text))
		return false;
	errno = 0;
	value = strtoul(text, NULL, 10);
	if (errno != 0 || value < 1 || value > RM_TIMESLICE_MAX_US)
		return false;
	*timeslice_us = (uint32_t)value;
	return true;
}

static const char *setting(const char *name)
{
	const char *text = secure_getenv(name);

	return text != NULL && *text != '\0' ? strdup(text) : NULL;
}

__attribute__((constructor)) static void settings_read(void)
{
	int saved = errno;
	const char *text;
	uint32_t timeslice_us;

	log_path = setting("VGPUMGR_SHIM_LOG");
	control_prefix = setting("VGPUMGR_SHIM_CONTROL");

	text = secure_getenv("VGPUMGR_SHIM_TIMESLICE_US");
	if (text != NULL && settings_parse_timeslice(text, &timeslice_us))
		settings_set_timeslice_us(timeslice_us);
	else if (text != NULL)
		record("setting_ignored", "\"name\":\"VGPUMGR_SHIM_TIMESLICE_US\"");

	text = secure_getenv("VGPUMGR_SHIM_PREEMPTION");
	if (text != NULL && strcmp(text, "refuse-wfi") == 0)
		preemption = PREEMPTION_REFUSE_WFI;
	else if (text != NULL && strcmp(text, "cilp") == 0)
		preemption = PREEMPTION_CILP;
	else if (text != NULL && strcmp(text, "pass") != 0)
		record("setting_ignored", "\"name\":\"VGPUMGR_SHIM_PREEMPTION\"");
	errno = saved;
}
