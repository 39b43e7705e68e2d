"""Per-task policy gradients and their projection, beside torch.func and traker on the same data in the same run.

    python benchmarks/gradients.py

Sixty-four tasks of the micro world, sixteen rollouts each, one thread. Ratios are times over ours: above 1, ours is faster.
"""

import time

import numpy as np
import pandas as pd
import torch
from torch.func import functional_call, grad, vmap
from trak.projectors import BasicProjector, ProjectionType

from lad_utils import micro
from lad_utils.gradients import Projection, advantages, items_of, policy_gradient
from lad_utils.influence import PROJECTED
from lad_utils.params import REPOSITORY, load_study
from lad_utils.rollouts import load_model, sampler_of, transformers_engine

REPEATS = 3
BATCHES = (4, 16)  # tasks that torch.func takes at once


def best(work, *args) -> float:
    """The shortest of REPEATS times, in seconds, after one that does not count."""
    times = []
    for _ in range(REPEATS + 1):
        started = time.perf_counter()
        work(*args)
        times.append(time.perf_counter() - started)
    return min(times[1:])


def rows_of(tokenizer, item, *, every: bool) -> list[tuple[list[int], int, float]]:
    """(ids, prompt length, weight) of an item's completions; `every`: copies are rows of their own."""
    prompt, share = tokenizer(item.prompt).input_ids, advantages(item, scaled=True) / item.counts.sum()
    rows = []
    for text, weight, n in zip(item.completions, share.tolist(), item.counts.tolist(), strict=True):
        ids = [*prompt, *tokenizer(text, add_special_tokens=False).input_ids, tokenizer.eos_token_id]
        rows += [(ids, len(prompt), weight)] * n if every else [(ids, len(prompt), weight * n)]
    return rows


def padded(tokenizer, rows: list[list[tuple]]):
    """Ids and weights of some items, padded to the most rows and the longest of them: (items, rows, length)."""
    most, longest = max(map(len, rows)), max(len(ids) for item in rows for ids, _, _ in item)
    ids = torch.full((len(rows), most, longest), tokenizer.pad_token_id)
    weights = torch.zeros((len(rows), most, longest - 1))
    for i, item in enumerate(rows):
        for j, (told, start, weight) in enumerate(item):
            ids[i, j, : len(told)] = torch.tensor(told)
            weights[i, j, start - 1 : len(told) - 1] = weight
    return ids, weights


def main() -> None:
    torch.set_num_threads(1)
    study = load_study("micro-reference")
    model, tokenizer = load_model(REPOSITORY / study.base_model)
    tasks = micro.make_tasks(64, split="pool", world_seed=study.world_seed)
    drawn = transformers_engine(model, tokenizer, sampler_of(study))(tasks, k=16, seed=0).assign(split="score")
    members = tasks.assign(split="score", verifier="exact")
    items = items_of(members, tasks.set_index("task_id")["prompt"], drawn)
    items = [i for i in items if len(set(i.rewards.tolist())) == 2]
    rows = sum(len(i.completions) for i in items)
    print(f"{len(items)} tasks with both rewards: {rows} distinct completions of {16 * len(items)}")

    def loss(parameters, ids, weights):
        logits = functional_call(model, parameters, kwargs={"input_ids": ids, "use_cache": False}).logits[:, :-1]
        return (torch.log_softmax(logits, -1).gather(-1, ids[:, 1:, None])[..., 0] * weights).sum()

    per_task, parameters = vmap(grad(loss), in_dims=(None, 0, 0)), {n: p.detach() for n, p in model.named_parameters()}

    def batched(batch, every):
        for start in range(0, len(items), batch):
            some = [rows_of(tokenizer, item, every=every) for item in items[start : start + batch]]
            per_task(parameters, *padded(tokenizer, some))

    ours = best(lambda: [policy_gradient(model, tokenizer, i) for i in items])
    table = {"ours: one backward a task, equal completions once": ours}
    table |= {f"torch.func, {b} tasks at once, equal completions once": best(batched, b, False) for b in BATCHES}
    table["torch.func, 4 tasks at once, every completion"] = best(batched, 4, True)
    print(
        pd.DataFrame(
            {
                "ms a task": {k: 1000 * v / len(items) for k, v in table.items()},
                "ratio": {k: v / ours for k, v in table.items()},
            }
        ).round(2)
    )

    gradient = torch.cat([policy_gradient(model, tokenizer, items[0])[None]] * 4)
    mine = Projection(gradient.shape[1], PROJECTED, seed=0)
    dense = BasicProjector(gradient.shape[1], PROJECTED, 0, ProjectionType.rademacher, "cpu", block_size=64)
    times = [best(lambda: [mine(g) for g in gradient]), best(lambda: dense.project(gradient, model_id=0))]
    exact, told = (
        float(gradient[0] @ gradient[0]),
        [float(p @ p) for p in (mine(gradient[0]), dense.project(gradient, model_id=0)[0])],
    )
    mean, beside = 1000 * times[0] / 4, times[1] / times[0]
    print(f"projection to {PROJECTED}: {mean:.1f} ms a gradient; traker's BasicProjector {beside:.0f} times that")
    print(
        f"squared norm kept: ours {told[0] / exact:.3f}, traker's {told[1] / exact / PROJECTED:.3f} (its entries are 1 and -1)"
    )
    assert np.isfinite(told).all()


if __name__ == "__main__":
    main()
