# SPDX-License-Identifier: Apache-2.0
"""A user's program: keeps its queue full of equal kernels until its standard input ends.

    python queueing.py MILLISECONDS

MILLISECONDS is about how long a kernel takes. Prints `computing` when the queue is full, and at the end how many
kernels were computed. Exits with 3 and OpenCL's error if a call fails.
"""

import collections
import select
import sys
import time

import numpy as np
import pyopencl as cl

SOURCE = """
__kernel void turn(__global float *numbers, int turns)
{
    int i = get_global_id(0);
    float number = numbers[i];
    for (int turn = 0; turn < turns; turn++)
        number = number * 0.5f + 1.0f;
    numbers[i] = number;
}
"""
ITEMS = 1 << 12
QUEUED_MS = 1000.0
QUEUED_MOST = 4000


def turns_for(milliseconds: float, queue: cl.CommandQueue, kernel: cl.Kernel, numbers: cl.Buffer) -> int:
    """Return the loop count for a kernel of this duration, from the shortest of a few tries: others compute too."""
    turns = 1000
    took = []
    for _ in range(5):
        began = time.perf_counter()
        kernel(queue, (ITEMS,), None, numbers, np.int32(turns))
        queue.finish()
        took.append((time.perf_counter() - began) * 1e3)
    return max(1, int(turns * milliseconds / min(took)))


def main(milliseconds: float) -> None:
    context = cl.create_some_context(interactive=False)
    queue = cl.CommandQueue(context)
    numbers = cl.Buffer(context, cl.mem_flags.READ_WRITE, ITEMS * 4)
    kernel = cl.Kernel(cl.Program(context, SOURCE).build(), "turn")
    turns = np.int32(turns_for(milliseconds, queue, kernel, numbers))
    most = max(4, min(QUEUED_MOST, int(QUEUED_MS / milliseconds)))
    events: collections.deque[cl.Event] = collections.deque()
    count = 0
    while not select.select([sys.stdin], [], [], 0)[0]:
        events.append(kernel(queue, (ITEMS,), None, numbers, turns))
        if len(events) == most:
            if not count:
                print("computing", flush=True)
            queue.flush()
            # Wait for half of the kernels at once, so the queue never runs empty while this process waits to run.
            events[most // 2].wait()
            count += most // 2 + 1
            for _ in range(most // 2 + 1):
                events.popleft()
    queue.finish()
    print(count + len(events), flush=True)


if __name__ == "__main__":
    try:
        main(float(sys.argv[1]))
    except cl.Error as error:
        print(error, flush=True)
        sys.exit(3)
