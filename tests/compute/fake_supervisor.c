// SPDX-License-Identifier: Apache-2.0
/*
 * Stands in for vgpu-supervisor.  It sends its socket and its arguments to the test, which listens at
 * VGPU_TEST_SUPERVISOR, and waits until it is killed.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "executor/start.h"

int main(int count, char **arguments)
{
	union {
		struct cmsghdr header;
		char space[CMSG_SPACE(sizeof(int))];
	} control = { 0 };
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	int given = VGPU_FD_SUPERVISOR_SOCKET;
	char text[2048];
	struct iovec part = { text, 0 };
	struct msghdr message = {
		.msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control.space),
	};
	int fd = socket(AF_UNIX, SOCK_SEQPACKET, 0);

	for (int i = 1; i < count; i++)
		part.iov_len += (size_t)snprintf(text + part.iov_len, sizeof(text) - part.iov_len, "%s%s",
						 i > 1 ? " " : "", arguments[i]);
	snprintf(address.sun_path, sizeof(address.sun_path), "%s", getenv("VGPU_TEST_SUPERVISOR"));
	control.header.cmsg_level = SOL_SOCKET;
	control.header.cmsg_type = SCM_RIGHTS;
	control.header.cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(&control.header), &given, sizeof(given));
	if (connect(fd, (struct sockaddr *)&address, sizeof(address)) || sendmsg(fd, &message, 0) < 0)
		return 1;
	close(given);
	for (;;)
		pause();
}
