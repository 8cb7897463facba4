// SPDX-License-Identifier: GPL-2.0
/* Code that all transports share. */
#include "transport.h"

#include <stdarg.h>
#include <stdio.h>

int transport_fail(struct transport *transport, int error, const char *format,
		   ...)
{
	va_list args;

	va_start(args, format);
	vsnprintf(transport->message, sizeof(transport->message), format, args);
	va_end(args);
	return error;
}
