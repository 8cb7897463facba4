// SPDX-License-Identifier: Apache-2.0
#include "broker/memory.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Older headers may lack these flags: MFD_NOEXEC_SEAL is from Linux 6.3. */
#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL	8u
#endif
#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE	0x0010
#endif

#define PAGE	4096u

static int create(const char *name)
{
	int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL);

	if (fd < 0 && errno == EINVAL)
		fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
	return fd;
}

static int close_with(int fd, int error)
{
	close(fd);
	return -error;
}

/* Return the descriptor, with its first page mapped, or -errno. */
static int make(const char *name, uint64_t bytes, int seals, void **page)
{
	int fd = create(name);

	if (fd < 0)
		return -errno;
	if (ftruncate(fd, (off_t)bytes))
		return close_with(fd, errno);
	/*
	 * Allocate the page now: a failure on access would kill the broker with a signal.
	 */
	if (fallocate(fd, 0, 0, PAGE))
		return close_with(fd, errno);
	*page = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (*page == MAP_FAILED)
		return close_with(fd, errno);
	/*
	 * Seal only after the mapping, because F_SEAL_FUTURE_WRITE does not affect existing
	 * mappings.  Without that seal, others could punch a hole in the memfd, even if the page is
	 * locked by mlock().  The next load would then get a new empty page in place of the
	 * broker's page.
	 */
	if (fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL | seals)) {
		int error = errno;

		munmap(*page, PAGE);
		return close_with(fd, error);
	}
	return fd;
}

int memory_window(uint64_t bytes, struct vgpu_window **header)
{
	void *page;
	int fd = make("vgpumgr-window", bytes, 0, &page);

	if (fd < 0)
		return fd;
	*header = page;
	(*header)->magic = VGPU_WINDOW_MAGIC;
	(*header)->version = VGPU_WINDOW_VERSION;
	(*header)->bytes = bytes;
	return fd;
}

int memory_lease(struct vgpu_lease_page **page)
{
	void *mapped;
	int fd = make("vgpumgr-lease", PAGE, F_SEAL_FUTURE_WRITE, &mapped);

	if (fd < 0)
		return fd;
	*page = mapped;
	(*page)->magic = VGPU_LEASE_MAGIC;
	(*page)->version = VGPU_LEASE_VERSION;
	return fd;
}

int memory_stream(struct vgpu_stream_page **page)
{
	void *mapped;
	int fd = make("vgpumgr-stream", PAGE, 0, &mapped);

	if (fd >= 0)
		*page = mapped;
	return fd;
}

void memory_unmap(void *page)
{
	if (page)
		munmap(page, PAGE);
}

static void wake(_Atomic uint32_t *word)
{
	atomic_fetch_add(word, 1);
	syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

void memory_window_lost(struct vgpu_window *header)
{
	atomic_store(&header->child, VGPU_CHILD_LOST);
	wake(&header->reply.bell);
	wake(&header->request.space);
}

void memory_lease_wake(struct vgpu_lease_page *page)
{
	wake(&page->wake);
}
