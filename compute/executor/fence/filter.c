// SPDX-License-Identifier: Apache-2.0
/*
 * The filter of a native program: it selects the calls that are passed to the fence.  It is in a
 * file of its own because the launcher uses nothing else of the fence.
 *
 * NVIDIA's driver checks the low byte and the size in a request number, but not the letter.
 * nvidia-uvm checks the whole number.  Calls that neither of them would accept continue at once, so
 * terminals, sockets and files have no overhead.  Calls whose number alone shows that they are
 * harmless continue, too.
 */
#include <errno.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "executor/fence/fence.h"
#include "executor/fence/rm_numbers.h"
#include "executor/sandbox/architecture.h"
#include "rm_abi.h"

#ifndef SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV
#define SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV	(1ul << 5)	/* Linux 5.19 */
#endif

#ifdef VGPU_SANDBOX_ARCHITECTURE

#define INSTRUCTIONS	256u
/*
 * All request numbers of the driver have a low byte in one of these ranges.  The second range
 * includes the drm calls that allocate memory, because drm does not check the letter either.
 */
#define ESCAPES_FIRST	0x20u
#define ESCAPES_LAST	0x5fu
#define NUMBERS_FIRST	160u
#define NUMBERS_LAST	230u
#define MANAGED_LAST	0xfffu	/* nvidia-uvm, including its test calls */
#define MANAGED_BEGIN	0x30000000u
#define MANAGED_BEGIN_LAST	0x300000ffu
/* struct termios2: its calls have low bytes of the driver's range, but another size. */
#define TERMINAL	'T'
#define TERMINAL_BYTES	44u
#define DISPLAY		'd'
#define MODE_SETTING	'm'
#define MODE_SETTING_BYTES	16u	/* nvidia-modeset's only call: low byte 0, any letter */
#define NUMBER_OFFSET	offsetof(struct seccomp_data, args[1])

struct program {
	struct sock_filter code[INSTRUCTIONS];
	unsigned short length;
};

static void emit(struct program *program, unsigned short code, uint32_t k, uint8_t yes, uint8_t no)
{
	if (program->length < INSTRUCTIONS)
		program->code[program->length] = (struct sock_filter){ code, yes, no, k };
	program->length++;
}

static void give(struct program *program, uint32_t action)
{
	emit(program, BPF_RET | BPF_K, action, 0, 0);
}

static void give_if(struct program *program, uint32_t value, uint32_t action)
{
	emit(program, BPF_JMP | BPF_JEQ | BPF_K, value, 0, 1);
	give(program, action);
}

static void give_within(struct program *program, uint32_t first, uint32_t last, uint32_t action)
{
	emit(program, BPF_JMP | BPF_JGE | BPF_K, first, 0, 2);
	emit(program, BPF_JMP | BPF_JGT | BPF_K, last, 1, 0);
	give(program, action);
}

/* Loads a part of the request number: letter, size or low byte. */
static void load_part(struct program *program, unsigned int shift, uint32_t mask)
{
	emit(program, BPF_LD | BPF_W | BPF_ABS, NUMBER_OFFSET, 0, 0);
	emit(program, BPF_ALU | BPF_RSH | BPF_K, shift, 0, 0);
	emit(program, BPF_ALU | BPF_AND | BPF_K, mask, 0, 0);
}

static void write_system_calls(struct program *program)
{
	emit(program, BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, arch), 0, 0);
	emit(program, BPF_JMP | BPF_JEQ | BPF_K, VGPU_SANDBOX_ARCHITECTURE, 1, 0);
	give(program, SECCOMP_RET_KILL_PROCESS);
	emit(program, BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr), 0, 0);
#ifdef VGPU_SANDBOX_X32
	emit(program, BPF_JMP | BPF_JGE | BPF_K, VGPU_SANDBOX_X32, 0, 1);
	give(program, SECCOMP_RET_KILL_PROCESS);
#endif
	/* Calls made through io_uring bypass every seccomp filter. */
	give_if(program, __NR_io_uring_setup, SECCOMP_RET_ERRNO | EPERM);
	emit(program, BPF_JMP | BPF_JEQ | BPF_K, __NR_ioctl, 1, 0);
	give(program, SECCOMP_RET_ALLOW);
}

/* Compares whole numbers: nvidia-uvm's calls, and the launcher's own call. */
static void write_numbers(struct program *program)
{
	emit(program, BPF_LD | BPF_W | BPF_ABS, NUMBER_OFFSET, 0, 0);
	for (unsigned int i = 0; rm_continued_uvm[i]; i++)
		give_if(program, rm_continued_uvm[i], SECCOMP_RET_ALLOW);
	give_within(program, 0, MANAGED_LAST, SECCOMP_RET_USER_NOTIF);
	give_within(program, MANAGED_BEGIN, MANAGED_BEGIN_LAST, SECCOMP_RET_USER_NOTIF);
	give_if(program, VGPU_FENCE_HELLO, SECCOMP_RET_USER_NOTIF);
}

/*
 * Numbers with the driver's own letter and both directions are the driver's calls, whatever their
 * size.  Those in the list continue, and the others go to the fence.
 */
static void write_continued(struct program *program)
{
	unsigned short begin;

	emit(program, BPF_LD | BPF_W | BPF_ABS, NUMBER_OFFSET, 0, 0);
	emit(program, BPF_ALU | BPF_AND | BPF_K, 0xc000ff00u, 0, 0);
	begin = program->length;
	emit(program, BPF_JMP | BPF_JEQ | BPF_K, 0xc0000000u | RM_MAGIC << 8, 0, 0);
	load_part(program, 0, 0xff);
	for (unsigned int i = 0; rm_continued[i]; i++)
		/* The older memory call can also allocate GPU memory, which the fence has to count. */
		if (rm_continued[i] != RM_ESC_HEAP)
			give_if(program, rm_continued[i], SECCOMP_RET_ALLOW);
	give(program, SECCOMP_RET_USER_NOTIF);
	if (begin < INSTRUCTIONS)
		program->code[begin].jf = (uint8_t)(program->length - begin - 1);
}

static void write_others(struct program *program)
{
	load_part(program, 8, 0xff);
	give_if(program, DISPLAY, SECCOMP_RET_USER_NOTIF);
	give_if(program, MODE_SETTING, SECCOMP_RET_USER_NOTIF);
	load_part(program, 16, 0x3fff);
	give_if(program, 0, SECCOMP_RET_ALLOW);
	/* Compare letter and size. */
	load_part(program, 8, 0x3fffff);
	give_if(program, TERMINAL_BYTES << 8 | TERMINAL, SECCOMP_RET_ALLOW);
	load_part(program, 0, 0x3fff00ff);
	give_if(program, MODE_SETTING_BYTES << 16, SECCOMP_RET_USER_NOTIF);
	load_part(program, 0, 0xff);
	give_within(program, ESCAPES_FIRST, ESCAPES_LAST, SECCOMP_RET_USER_NOTIF);
	give_within(program, NUMBERS_FIRST, NUMBERS_LAST, SECCOMP_RET_USER_NOTIF);
	give(program, SECCOMP_RET_ALLOW);
}

/*
 * Calls that continue in the program have the rights of their caller.  With CAP_SYS_ADMIN the
 * driver would give out all GPU memory, including that of other tenants.  The other capabilities
 * would enable a program to access its fence or to bypass the kernel.  no_new_privs keeps the
 * program from regaining any of them.
 */
static const unsigned int given_up[] = {
	CAP_SYS_ADMIN, CAP_SYS_PTRACE, CAP_SYS_MODULE, CAP_SYS_RAWIO, CAP_BPF, CAP_PERFMON,
	CAP_CHECKPOINT_RESTORE,
};

static bool give_up_privileges(void)
{
	struct __user_cap_header_struct header = { .version = _LINUX_CAPABILITY_VERSION_3 };
	struct __user_cap_data_struct sets[_LINUX_CAPABILITY_U32S_3];

	if (syscall(SYS_capget, &header, sets))
		return false;
	for (unsigned int i = 0; i < sizeof(given_up) / sizeof(given_up[0]); i++) {
		struct __user_cap_data_struct *set = &sets[CAP_TO_INDEX(given_up[i])];
		uint32_t others = ~CAP_TO_MASK(given_up[i]);

		set->effective &= others;
		set->permitted &= others;
		set->inheritable &= others;
	}
	return !syscall(SYS_capset, &header, sets);
}

int vgpu_fence_listen(void)
{
	static struct program program;
	struct sock_fprog filter = { .filter = program.code };
	long listener;

	program.length = 0;
	write_system_calls(&program);
	write_numbers(&program);
	write_continued(&program);
	write_others(&program);
	if (program.length > INSTRUCTIONS)
		return -ENOSPC;
	filter.len = program.length;
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || !give_up_privileges())
		return -errno;
	/* Without WAIT_KILLABLE_RECV, a signal would cause a call to be made twice. */
	listener = syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER,
			   SECCOMP_FILTER_FLAG_NEW_LISTENER | SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV, &filter);
	return listener < 0 ? -errno : (int)listener;
}

#else

int vgpu_fence_listen(void)
{
	return -ENOSYS;
}

#endif
