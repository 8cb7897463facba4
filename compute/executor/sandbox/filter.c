// SPDX-License-Identifier: Apache-2.0
/*
 * The system calls of a confined process, as a hand-written BPF program.  It is a list of permitted
 * calls, with conditions on the arguments of calls that could affect other processes.  Everything
 * else fails with EPERM, so that a library that tries such a call can continue.
 *
 * With PoCL, kernels run in this process, so the list is the tenant's whole interface to the host's
 * kernel.
 */
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "executor/sandbox/architecture.h"
#include "executor/sandbox/sandbox.h"
#include "protocol/control.h"

#ifdef VGPU_SANDBOX_ARCHITECTURE

#define INSTRUCTIONS	768u
#define NAMESPACE_FLAGS	(CLONE_NEWNS | CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNET | \
			 CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWCGROUP)

static const int allowed[] = {
	/* memory */
	__NR_brk, __NR_mmap, __NR_munmap, __NR_mprotect, __NR_mremap, __NR_madvise, __NR_msync,
	__NR_memfd_create, __NR_membarrier,
	/* threads and time */
	__NR_futex, __NR_futex_waitv, __NR_sched_yield, __NR_sched_getaffinity, __NR_getcpu,
	__NR_set_robust_list, __NR_get_robust_list, __NR_set_tid_address, __NR_rseq,
	__NR_gettid, __NR_getpid, __NR_getppid, __NR_exit, __NR_exit_group, __NR_restart_syscall,
	__NR_nanosleep, __NR_clock_nanosleep, __NR_clock_gettime, __NR_clock_getres,
	__NR_gettimeofday, __NR_getrusage, __NR_times, __NR_sysinfo, __NR_uname, __NR_getrandom,
	/* signals of the process itself */
	__NR_rt_sigaction, __NR_rt_sigprocmask, __NR_rt_sigreturn, __NR_sigaltstack,
	/* identity */
	__NR_getuid, __NR_geteuid, __NR_getgid, __NR_getegid, __NR_getresuid, __NR_getresgid,
	__NR_capget,
	/* files that the mount namespace and Landlock make accessible */
	__NR_openat, __NR_close, __NR_close_range, __NR_read, __NR_write, __NR_readv, __NR_writev,
	__NR_pread64, __NR_pwrite64, __NR_lseek, __NR_fstat, __NR_newfstatat, __NR_statx,
	__NR_statfs, __NR_fstatfs, __NR_getdents64, __NR_readlinkat, __NR_faccessat,
	__NR_faccessat2, __NR_getcwd, __NR_chdir, __NR_mkdirat, __NR_unlinkat, __NR_renameat,
	__NR_renameat2, __NR_linkat, __NR_symlinkat, __NR_ftruncate, __NR_truncate,
	__NR_fallocate, __NR_fchmod, __NR_fchmodat, __NR_utimensat, __NR_umask, __NR_flock,
	__NR_fsync, __NR_fdatasync, __NR_fadvise64, __NR_dup, __NR_dup3, __NR_pipe2, __NR_ppoll,
	__NR_pselect6, __NR_copy_file_range, __NR_sendfile,
#ifdef __x86_64__
	__NR_open, __NR_stat, __NR_lstat, __NR_access, __NR_readlink, __NR_mkdir, __NR_rmdir,
	__NR_unlink, __NR_rename, __NR_link, __NR_symlink, __NR_chmod, __NR_dup2, __NR_pipe,
	__NR_poll, __NR_select, __NR_arch_prctl, __NR_time, __NR_getdents, __NR_utime,
	__NR_utimes,
#endif
};

static const int compiler_allowed[] = {
	__NR_execve, __NR_wait4, __NR_waitid,
#ifdef __x86_64__
	__NR_fork, __NR_vfork,
#endif
};

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

static void load(struct program *program, size_t offset)
{
	emit(program, BPF_LD | BPF_W | BPF_ABS, (uint32_t)offset, 0, 0);
}

static void give(struct program *program, uint32_t action)
{
	emit(program, BPF_RET | BPF_K, action, 0, 0);
}

static void refuse(struct program *program, int error)
{
	give(program, SECCOMP_RET_ERRNO | (uint32_t)error);
}

/* Each of these functions expects the call's number in the accumulator, and leaves it there. */
static void allow(struct program *program, int number)
{
	emit(program, BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)number, 0, 1);
	give(program, SECCOMP_RET_ALLOW);
}

static void refuse_call(struct program *program, int number, int error)
{
	emit(program, BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)number, 0, 1);
	refuse(program, error);
}

/* Refuses the call if an argument has one of these flags. */
static void refuse_flags(struct program *program, int number, unsigned int argument,
			 uint32_t flags, int error)
{
	emit(program, BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)number, 0, 4);
	load(program, offsetof(struct seccomp_data, args[argument]));
	emit(program, BPF_JMP | BPF_JSET | BPF_K, flags, 0, 1);
	refuse(program, error);
	load(program, offsetof(struct seccomp_data, nr));
}

static void refuse_value(struct program *program, int number, unsigned int argument,
			 uint32_t value, int error)
{
	emit(program, BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)number, 0, 4);
	load(program, offsetof(struct seccomp_data, args[argument]));
	emit(program, BPF_JMP | BPF_JEQ | BPF_K, value, 0, 1);
	refuse(program, error);
	load(program, offsetof(struct seccomp_data, nr));
}

/*
 * Permits the call if the low half of an argument is one of a few values.  No such argument uses
 * the high half.
 */
static void allow_values(struct program *program, int number, unsigned int argument,
			 const uint32_t *values, unsigned int count)
{
	emit(program, BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)number, 0, (uint8_t)(2 + 2 * count));
	load(program, offsetof(struct seccomp_data, args[argument]));
	for (unsigned int i = 0; i < count; i++) {
		emit(program, BPF_JMP | BPF_JEQ | BPF_K, values[i], 0, 1);
		give(program, SECCOMP_RET_ALLOW);
	}
	refuse(program, EPERM);
}

/*
 * Permits a compiler's threads and processes, but no new namespaces.  A child may start no threads:
 * it has all its threads when its library is open, and with more threads it could delay the gate.
 */
static void allow_clone(struct program *program)
{
	emit(program, BPF_JMP | BPF_JEQ | BPF_K, __NR_clone, 0, 4);
	load(program, offsetof(struct seccomp_data, args[0]));
	emit(program, BPF_JMP | BPF_JSET | BPF_K, NAMESPACE_FLAGS, 1, 0);
	give(program, SECCOMP_RET_ALLOW);
	refuse(program, EPERM);
}

/*
 * Permits abort(), and the check whether a thread exists.  No other signal is permitted: a thread
 * that sends itself SIGCONT in a loop would undo the gate's SIGSTOP.
 */
static void allow_abort(struct program *program)
{
	emit(program, BPF_JMP | BPF_JEQ | BPF_K, __NR_tgkill, 0, 7);
	load(program, offsetof(struct seccomp_data, args[0]));
	emit(program, BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)getpid(), 0, 4);
	load(program, offsetof(struct seccomp_data, args[2]));
	emit(program, BPF_JMP | BPF_JEQ | BPF_K, 0, 1, 0);
	emit(program, BPF_JMP | BPF_JEQ | BPF_K, SIGABRT, 0, 1);
	give(program, SECCOMP_RET_ALLOW);
	refuse(program, EPERM);
}

/* Huge pages count for no limit of a process or of a memory cgroup. */
static void refuse_memory(struct program *program)
{
	refuse_flags(program, __NR_mmap, 3, MAP_HUGETLB, ENOMEM);
	refuse_flags(program, __NR_memfd_create, 1, MFD_HUGETLB, EINVAL);
	/*
	 * These calls cannot be interrupted by a signal or by the freezer, so they delay the gate.
	 * They populate memory at once, or wait for all processors of the host (the commands
	 * GLOBAL, GLOBAL_EXPEDITED and its registration).
	 */
	refuse_flags(program, __NR_mmap, 3, MAP_POPULATE, EOPNOTSUPP);
	refuse_value(program, __NR_madvise, 2, MADV_POPULATE_READ, EINVAL);
	refuse_value(program, __NR_madvise, 2, MADV_POPULATE_WRITE, EINVAL);
	refuse_flags(program, __NR_membarrier, 0, 7, EINVAL);
}

static void write_program(struct program *program, const struct vgpu_sandbox *sandbox)
{
	const uint32_t nobody[] = { 0 };
	const uint32_t sockets[] = { VGPU_FD_ARBITER, VGPU_FD_SUPERVISOR };
	const uint32_t supervisor[] = { VGPU_FD_SUPERVISOR };
	/* Sets and gets names of threads, and sets names of anonymous memory. */
	const uint32_t names[] = { PR_SET_NAME, PR_GET_NAME, 0x53564d41 };
	/* F_SETOWN, F_SETSIG and F_NOTIFY are missing, because they make the kernel send signals. */
	const uint32_t controls[] = { 0, 1, 2, 3, 4, 5, 6, 7, 36, 37, 38, 1030, 1033, 1034 };

	load(program, offsetof(struct seccomp_data, arch));
	emit(program, BPF_JMP | BPF_JEQ | BPF_K, VGPU_SANDBOX_ARCHITECTURE, 1, 0);
	give(program, SECCOMP_RET_KILL_PROCESS);
	load(program, offsetof(struct seccomp_data, nr));
#ifdef VGPU_SANDBOX_X32
	/* x32 uses other numbers for the same calls. */
	emit(program, BPF_JMP | BPF_JGE | BPF_K, VGPU_SANDBOX_X32, 0, 1);
	refuse(program, ENOSYS);
#endif
	refuse_memory(program);
	for (unsigned int i = 0; i < sizeof(allowed) / sizeof(allowed[0]); i++)
		allow(program, allowed[i]);
	for (unsigned int i = 0; sandbox->compiler && i < sizeof(compiler_allowed) / sizeof(int); i++)
		allow(program, compiler_allowed[i]);
	/*
	 * The flags of clone3() are in memory, where the filter cannot check them.  After ENOSYS,
	 * glibc uses clone().
	 */
	refuse_call(program, __NR_clone3, ENOSYS);
	if (sandbox->relayed)
		allow(program, __NR_ioctl);
	else
		refuse_call(program, __NR_ioctl, ENOTTY);
	if (sandbox->compiler)
		allow_clone(program);
	allow_values(program, __NR_prctl, 0, names, 3);
	allow_values(program, __NR_fcntl, 1, controls, sizeof(controls) / sizeof(controls[0]));
	allow_values(program, __NR_prlimit64, 0, nobody, 1);
	/* This permits signals to this process only.  The linker, a separate process, needs to send none. */
	allow_abort(program);
	if (!sandbox->compiler) {
		allow_values(program, __NR_sendto, 0, sockets, 2);
		allow_values(program, __NR_sendmsg, 0, sockets, 2);
		allow_values(program, __NR_recvfrom, 0, supervisor, 1);
		allow_values(program, __NR_recvmsg, 0, supervisor, 1);
	}
	refuse(program, EPERM);
}

int vgpu_sandbox_filter(const struct vgpu_sandbox *sandbox)
{
	static struct program program;
	struct sock_fprog filter = { .filter = program.code };

	program.length = 0;
	write_program(&program, sandbox);
	if (program.length > INSTRUCTIONS)
		return E2BIG;
	filter.len = program.length;
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
		return errno;
	/* A positive result is the ID of a thread that could not be given the filter. */
	switch (syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &filter)) {
	case 0:
		return 0;
	case -1:
		return errno;
	default:
		return EBUSY;
	}
}

#else

int vgpu_sandbox_filter(const struct vgpu_sandbox *sandbox)
{
	(void)sandbox;
	return ENOSYS;
}

#endif
