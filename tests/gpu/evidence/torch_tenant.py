# SPDX-License-Identifier: Apache-2.0
"""A real model as a tenant, with the protocol of `vgpumgr.gpu.load`.

`service`: an encoder of 12 layers answers one request of 128 tokens every period. `training`: the same encoder
trains with AdamW on batches of 64 x 512 tokens, which should keep a large GPU busy. Weights and data are random,
because only the amount of work matters.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

from vgpumgr.gpu.load import Done, end_with_parent, hear, now_ns, say

LAYERS, WIDTH, HEADS = 12, 768, 12
# Sequences in a batch, and tokens in a sequence.
BATCHES = {"service": (1, 128), "training": (64, 512)}
WARM_UP = 20


def build(role: str) -> Any:
    """Return a function that completes one request or one step."""
    import torch

    torch.manual_seed(1)
    layer = torch.nn.TransformerEncoderLayer(WIDTH, HEADS, dim_feedforward=4 * WIDTH, batch_first=True)
    model = torch.nn.TransformerEncoder(layer, LAYERS).to("cuda", torch.bfloat16)
    data = torch.randn(*BATCHES[role], WIDTH, device="cuda", dtype=torch.bfloat16)
    if role == "service":
        model.eval()

        @torch.inference_mode()
        def answer() -> None:
            model(data)
            torch.cuda.synchronize()

        return answer

    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        model(data).float().square().mean().backward()
        optimizer.step()
        torch.cuda.synchronize()

    return step


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("role", choices=("service", "training"))
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--period-us", type=float)
    parser.add_argument("--output", type=Path, required=True)
    # Other arguments are for the synthetic load and have no meaning for a model.
    return parser.parse_known_args()[0]


def work(once: Any, seconds: float, period_us: float | None) -> Done:
    done, until_ns = Done(), now_ns() + round(seconds * 1e9)
    due_ns = now_ns()
    while due_ns < until_ns:
        if (early_ns := due_ns - now_ns()) > 0:
            time.sleep(early_ns / 1e9)
        once()
        done.add(due_ns)
        due_ns = now_ns() if period_us is None else due_ns + round(period_us * 1000)
    return done


def main() -> int:
    arguments = parse()
    end_with_parent()
    try:
        import torch

        once = build(arguments.role)
        for _ in range(WARM_UP):
            once()
    except (ImportError, RuntimeError) as error:
        say("error", code="load_failed", reason=str(error).splitlines()[0])
        return 1
    say("ready", rounds=1, gpu=torch.cuda.get_device_name(), wfi_statuses=[])
    hear()
    start_ns = now_ns()
    done = work(once, arguments.seconds, arguments.period_us)
    count = len(done.done_ns)
    arguments.output.write_text(
        json.dumps(
            {
                "rounds": 1,
                "start_ns": start_ns,
                "end_ns": now_ns(),
                "launches": count,
                "counted": count,
                "done_ns": done.done_ns,
                "latency_us": done.latency_us,
                "mark_ns": [],
            }
        )
    )
    say("end")
    return 0


if __name__ == "__main__":
    sys.exit(main())
