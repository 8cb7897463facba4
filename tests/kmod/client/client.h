/* SPDX-License-Identifier: GPL-2.0 */
/* Subcommands of vgpu-client; each returns an exit status. */
#ifndef VGPU_CLIENT_CLIENT_H
#define VGPU_CLIENT_CLIENT_H

#include <stdbool.h>
#include <stdint.h>

#include "saturate.h"
#include "transport.h"

struct client_options {
	uint32_t entries;
	uint64_t period_ns; /* of latency */
	uint64_t seed;	    /* of fuzz */
	bool leave_frozen;  /* freeze: exit without answering the faults */
	bool fault_first;   /* freeze: the faults' file is closed first */
};

#define CLIENT_SLICES_MAX 256

/* Saturate several slices from one process; @specs: UUID,option=value,... */
int client_slices(const char *const specs[], unsigned int count,
		  const struct saturate_options *defaults,
		  const struct client_options *options, bool json, bool ready);

/* Check every answer of VFIO, and what it must refuse. Opens the device itself. */
int client_probe(const char *uuid, bool json);

/* Take operand memory away while items use it. */
int client_unmap_race(struct transport *transport, uint64_t duration_ns,
		      bool json);
/* Rewrite descriptors while the device reads them. */
int client_toctou(struct transport *transport, uint64_t duration_ns, bool json);
/* Operand memory that does not answer for some time. */
int client_freeze(const char *uuid, const struct client_options *options,
		  uint64_t duration_ns, bool json);
/* Random calls from three threads, with the device opened again and again. */
int client_fuzz(const char *uuid, uint64_t duration_ns, uint64_t seed, bool json);
/* One item every period; the distribution of its completion latency. */
int client_latency(struct transport *transport, uint64_t duration_ns,
		   uint64_t period_ns, uint32_t delay_ns, bool json);
/* Check that device memory holds zeros when opened; leaves a pattern for the next user to find. */
int client_residue(struct transport *transport, bool json);
/* Keep the device open until the end of stdin. */
int client_hold(struct transport *transport, bool json);

#endif
