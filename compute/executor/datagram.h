/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Datagrams of a fixed size on non-blocking SOCK_SEQPACKET sockets (protocol/control.h,
 * uapi/vgpu_lease_page.h).
 */
#ifndef VGPU_EXECUTOR_DATAGRAM_H
#define VGPU_EXECUTOR_DATAGRAM_H

#include <stddef.h>

#define VGPU_DATAGRAM_FDS_MAX	4u

/* @fds: @count descriptors to send along; the caller still owns them.  Return: 0 or -errno. */
int vgpu_datagram_send(int fd, const void *data, size_t bytes, const int *fds, unsigned int count);

/**
 * vgpu_datagram_receive() - read one datagram that has no descriptors
 *
 * Return: 1 if @data is filled, 0 if there is no datagram, -EPIPE at the end of the connection,
 * -EBADMSG for a datagram of another size or with descriptors (which are closed), or another
 * -errno.
 */
int vgpu_datagram_receive(int fd, void *data, size_t bytes);
/*
 * Like vgpu_datagram_receive(), for a datagram that may have one descriptor.  @received is set to
 * that descriptor, which is close-on-exec and owned by the caller, or to -1 if there is none.
 */
int vgpu_datagram_receive_fd(int fd, void *data, size_t bytes, int *received);

#endif /* VGPU_EXECUTOR_DATAGRAM_H */
