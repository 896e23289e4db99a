"""Trains one small model on several nodes with torchrun: each rank has its part of the data.

dgpu submit --nodes 2 -G 2 -- torchrun examples/multi_node.py
dgpu logs --rank 0 ID

dgpu starts torchrun once on each node and sets what it reads (`PET_*`, `MASTER_ADDR`, `MASTER_PORT`), so it needs no
options. Needs torch; runs on CPUs too, where simulated GPUs are given.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

STEPS = 200
SAMPLES = 256  # of each rank


def main() -> None:
    has_gpu = torch.cuda.is_available()
    dist.init_process_group("nccl" if has_gpu else "gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    device = torch.device("cuda", rank % torch.cuda.device_count()) if has_gpu else torch.device("cpu")
    torch.manual_seed(rank)
    inputs = torch.randn(SAMPLES, 8, device=device)
    wanted = inputs.sum(dim=1, keepdim=True)
    model = DistributedDataParallel(torch.nn.Linear(8, 1).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(inputs), wanted)
        loss.backward()
        optimizer.step()
    print(f"rank {rank} of {ranks}: loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
