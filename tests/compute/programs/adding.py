# SPDX-License-Identifier: Apache-2.0
"""A user's program: adds vectors on the first OpenCL device until its standard input ends.

    python adding.py [endless]

Prints a line when the first result is there and correct. At the end it prints how many results were computed. With
`endless` it then starts a kernel that never ends. If a call fails, the last line is OpenCL's error and the exit status
is 3.
"""

import select
import sys

import numpy as np
import pyopencl as cl

SOURCE = """
__kernel void add(__global const float *a, __global const float *b, __global float *sum)
{
    int i = get_global_id(0);
    sum[i] = a[i] + b[i];
}

__kernel void spin(__global volatile int *stop)
{
    while (!*stop)
        ;
}
"""
LENGTH = 1 << 16


def main() -> int:
    context = cl.create_some_context(interactive=False)
    queue = cl.CommandQueue(context)
    a = np.arange(LENGTH, dtype=np.float32)
    b = np.full(LENGTH, 0.5, dtype=np.float32)
    flags = cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR
    buffers = [cl.Buffer(context, flags, hostbuf=array) for array in (a, b, np.zeros_like(a))]
    stop = cl.Buffer(context, flags, hostbuf=np.zeros(1, dtype=np.int32))
    program = cl.Program(context, SOURCE).build()
    add, spin = cl.Kernel(program, "add"), cl.Kernel(program, "spin")
    result = np.empty_like(a)
    count = 0
    while True:
        add(queue, a.shape, None, *buffers)
        cl.enqueue_copy(queue, result, buffers[2])
        if not np.array_equal(result, a + b):
            print("wrong", flush=True)
            return 1
        count += 1
        if count == 1:
            print("computing", flush=True)
            if "endless" in sys.argv:
                spin(queue, (1,), None, stop)
                queue.finish()
        if select.select([sys.stdin], [], [], 0)[0]:
            print(count, flush=True)
            return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except cl.Error as error:
        print(error, flush=True)
        sys.exit(3)
