/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The shim. Loaded into a tenant's process with LD_PRELOAD, it sees every ioctl() of libcuda. It
 * sets the timeslice of each graphics and compute channel group, and replaces later settings.
 *
 * The shim is cooperative: it does not see a program that makes the system call itself. It must
 * never end or damage the process: a call that it cannot read or does not know goes to the driver
 * unchanged.
 *
 * Environment variables, read once when the library is loaded:
 *   VGPUMGR_SHIM_TIMESLICE_US  1 to RM_TIMESLICE_MAX_US; without it no timeslice is set
 *   VGPUMGR_SHIM_PREEMPTION    pass (as asked), refuse-wfi, or cilp (WFI becomes CILP)
 *   VGPUMGR_SHIM_LOG           a file: one line of JSON for everything the shim does
 *   VGPUMGR_SHIM_CONTROL       a prefix: PREFIX.PID becomes a socket for live changes
 */
#ifndef VGPUMGR_SHIM_H
#define VGPUMGR_SHIM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define RM_TIMESLICE_MAX_US (255u << 15)

enum preemption { PREEMPTION_PASS, PREEMPTION_REFUSE_WFI, PREEMPTION_CILP };

/* A channel group that runs kernels, and the open file on which it was created. */
struct group {
	int fd;
	dev_t device;
	ino_t inode;
	uint32_t client;
	uint32_t parent;
	uint32_t handle;
};

/* memory.c: access to the process's own memory by address, with an error instead of a signal. */
bool memory_read(void *to, uint64_t from, size_t size);
bool memory_write(uint64_t to, const void *from, size_t size);

/* settings.c: the settings; the timeslice may change while the process runs. */
uint32_t settings_timeslice_us(void);
void settings_set_timeslice_us(uint32_t timeslice_us);
bool settings_parse_timeslice(const char *text, uint32_t *timeslice_us);
enum preemption settings_preemption(void);
const char *settings_log_path(void);
const char *settings_control_prefix(void);

/* groups.c: the present groups. */
bool groups_add(const struct group *group);
bool groups_has(uint32_t client, uint32_t handle);
size_t groups_copy(struct group *to, size_t room);
void groups_drop(uint32_t client, uint32_t object);

/* driver.c: the driver's version; structures are read or changed only if it is known. */
bool driver_is_known(void);
void driver_learn(const char *text, size_t size);

/* record.c: writes one line to the log; the format gives the members after "event". */
void record(const char *event, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* control.c: live changes. */
void control_start(void);

/* shim.c: calls to the driver. */
int driver_ioctl(int fd, unsigned long request, void *argument);
int driver_set_timeslice(int fd, uint32_t client, uint32_t handle, uint32_t timeslice_us, uint32_t *status);

#define GROUPS_MAX 256

#endif
