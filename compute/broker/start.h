/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How the broker starts a supervisor, and how a program finds the broker.
 *
 * A supervisor is started as
 *
 *	vgpu-supervisor --tenant NAME --child PATH --library PATH --compile-cache-bytes N
 *
 * with its socket (SOCK_SEQPACKET, struct vgpu_supervisor_message) as descriptor
 * VGPU_FD_SUPERVISOR_SOCKET, /dev/null as standard input, and the broker's
 * standard output and error.  It has no other descriptor.  --child is the program
 * vgpu-child; --library is the accelerator's own OpenCL library, which the child
 * loads.  The environment is the broker's.  The supervisor leads a process group
 * of its own, and is sent SIGKILL when the broker dies.
 *
 * It kills all its children and exits when its socket ends or on SIGTERM.  All its
 * children die with it, whatever it dies of.  A START that arrives before it is
 * ready waits in the socket.
 *
 * THAW of children that are not frozen, and FREEZE of frozen ones, change nothing
 * and are answered with DONE: the broker also asks for processor_ns by them.
 *
 * A program has the path of its tenant's socket in VGPUMGR_SOCKET, and
 * OCL_ICD_VENDORS names a directory with one .icd file, that of our library.
 */
#ifndef VGPU_BROKER_START_H
#define VGPU_BROKER_START_H

#define VGPU_FD_SUPERVISOR_SOCKET	3
#define VGPU_SOCKET_VARIABLE	"VGPUMGR_SOCKET"

#endif /* VGPU_BROKER_START_H */
