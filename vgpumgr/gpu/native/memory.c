// SPDX-License-Identifier: Apache-2.0
/*
 * Reads and writes at addresses that a tenant gave. The kernel checks them, so a bad address cannot
 * end the process.
 */
#define _GNU_SOURCE
#include "shim.h"

#include <errno.h>
#include <sys/uio.h>
#include <unistd.h>

bool memory_read(void *to, uint64_t from, size_t size)
{
	struct iovec local = { .iov_base = to, .iov_len = size };
	struct iovec remote = { .iov_base = (void *)(uintptr_t)from, .iov_len = size };
	int saved = errno;
	ssize_t copied = process_vm_readv(getpid(), &local, 1, &remote, 1, 0);

	errno = saved;
	return copied >= 0 && (size_t)copied == size;
}

bool memory_write(uint64_t to, const void *from, size_t size)
{
	struct iovec local = { .iov_base = (void *)from, .iov_len = size };
	struct iovec remote = { .iov_base = (void *)(uintptr_t)to, .iov_len = size };
	int saved = errno;
	ssize_t copied = process_vm_writev(getpid(), &local, 1, &remote, 1, 0);

	errno = saved;
	return copied >= 0 && (size_t)copied == size;
}
