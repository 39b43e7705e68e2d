"""What a task's policy gradient says of its worth: its norm, and its agreement with the gradient of the target's accuracy.

All scores of a task are 0 where it has no gradient, so a cohort's mean counts such tasks as worth nothing.

gradient_norm   |g|, the gradient taken as GRPO takes it (after GraNd, Paul et al. 2021, eq. 2).
learnalign      p(1-p) cos(g, G): the alignment of LearnAlign (Li et al. 2025), whose norms give way to the learnability p(1-p).
                The paper aligns with other training tasks; here G is the target's gradient, the same for every method.
less            cos(Gamma(g), G), Gamma Adam's step from moments of a warm-up (LESS, Xia et al. 2024, eq. 3), with the RL loss.
                The text divides by sqrt(v) + eps, the authors' code by sqrt(v + eps): the text is followed. The warm-up moves
                no weights, so there is one checkpoint; its moments are corrected for their bias before g enters, not after.
trak            h' (F'F/n + ridge)^-1 f, f and h projected g and G, F those of the n tasks with a gradient (TRAK, Park et al.
                2023, eq. 13); its weights 1 - p of a classifier's margin have no counterpart here and are left out.
cropi           cos(f, h): the offline core of CROPI (Zhu et al. 2025), off-policy influence from stored rollouts; these are the
                base model's own, so no importance ratio enters.

DEPO's offline half (Tang et al. 2025) is not run: its determinantal process picks a subset of a pool, at most as many tasks as
an embedding has dimensions, and gives no value to a set that is already chosen.
"""

import hashlib
import json
import multiprocessing
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from lad_utils.costs import Meter
from lad_utils.gradients import KEY, Item, Projection, mean_gradient, policy_gradient
from lad_utils.rollouts import load_model
from lad_utils.runs import read_table, write_table

GRADIENT_METRICS = ("gradient_norm", "learnalign", "less", "trak", "cropi")
PROJECTED = 1024  # dimensions of the projection: a cosine of projected gradients errs by about 1/32
WARM_UP, BATCH = 256, 8  # tasks of LESS's warm-up, in batches as GRPO's steps have
BETAS, EPSILON = (0.9, 0.999), 1e-8  # Adam's, as in grpo.grpo_config
RIDGE = 1e-3  # of TRAK, times the mean eigenvalue of F'F/n: it only keeps the inverse defined
COMPARED = ("target", "momentum", "square")  # the tensors of a Reference
SPENT = ("forward_tokens", "backward_tokens", "flops", "seconds")
CHUNK = 200  # tasks a file, so that a kill loses half a minute


class Reference(NamedTuple):
    """What every task is compared with: the target's gradient and Adam's moments, (P,) each, and what they cost."""

    target: object
    momentum: object
    square: object
    target_cost: dict
    warm_up_cost: dict


def reference(model, tokenizer, targets: list[Item], items: list[Item], *, seed: int) -> Reference:
    """The gradient of the targets' mean accuracy, and Adam's moments over WARM_UP of the `items` drawn at random."""
    import torch

    with Meter(model, memory=True) as of_target:
        target = mean_gradient(model, tokenizer, targets, scaled=False)
    momentum, square = torch.zeros_like(target), torch.zeros_like(target)
    order = np.random.default_rng([seed, 17]).permutation(len(items))[:WARM_UP]
    batches = [order[i : i + BATCH] for i in range(0, len(order), BATCH)]
    with Meter(model, memory=True) as of_warm_up:
        for batch in batches:
            step = mean_gradient(model, tokenizer, [items[i] for i in batch], scaled=True)
            momentum = BETAS[0] * momentum + (1 - BETAS[0]) * step
            square = BETAS[1] * square + (1 - BETAS[1]) * step**2
    corrected = (v / (1 - b ** max(len(batches), 1)) for v, b in zip((momentum, square), BETAS, strict=True))
    return Reference(target, *corrected, of_target.cost(), of_warm_up.cost())


def _cosine(a, b) -> float:
    """In float64: sums of a million float32 keep three or four digits on some CPUs."""
    a, b = a.double(), b.double()
    norms = float(a.norm() * b.norm())
    return float(a @ b) / norms if norms > 0 else 0.0


def item_scores(model, tokenizer, item: Item, given: Reference, project: Projection) -> dict:
    """Scores of one task but TRAK's, which needs all tasks: norm, cosine, adam_cosine, projected (PROJECTED,)."""
    gradient = policy_gradient(model, tokenizer, item)
    if gradient is None:
        return {"norm": 0.0, "cosine": 0.0, "adam_cosine": 0.0, "projected": np.zeros(project.dim, np.float32)}
    (b1, b2), g = BETAS, gradient
    adam = (b1 * given.momentum + (1 - b1) * g) / ((b2 * given.square + (1 - b2) * g**2).sqrt() + EPSILON)
    found = {"norm": float(g.double().norm()), "cosine": _cosine(g, given.target), "adam_cosine": _cosine(adam, given.target)}
    return found | {"projected": project(g).numpy()}


def all_item_scores(
    base: Path, items: list[Item], given: Reference, *, seed: int, folder: Path, cores: int = 1, progress=None
) -> pd.DataFrame:
    """item_scores of every item under the model in `base`, resumably: one row an item with its key, pass_rate, SPENT.

    `cores` processes of one thread each; the result does not depend on it. `peak_bytes` is that of the process, while at the
    chunk. Files of CHUNK items lie in `folder`, named by what they depend on; a kill loses the chunks at work.
    """
    from safetensors.torch import save_file

    about = [seed, PROJECTED, round(float(given.target.norm()), 3), round(float(given.momentum.norm()), 3)]
    about.append([[*i.key, int(i.counts.sum()), i.pass_rate] for i in items])
    home = Path(folder) / hashlib.blake2b(json.dumps(about).encode(), digest_size=6).hexdigest()
    home.mkdir(parents=True, exist_ok=True)
    save_file({n: getattr(given, n) for n in COMPARED}, home / "reference.safetensors")
    paths = {start: home / f"{start:06d}.parquet" for start in range(0, len(items), CHUNK)}
    jobs = [(items[start : start + CHUNK], path) for start, path in paths.items() if not path.is_file()]
    worker = (Path(base), home / "reference.safetensors", seed)
    if cores == 1 or len(jobs) < 2:
        if jobs:
            _start(*worker)
        for job in jobs:
            done = _score_chunk(*job)
            if progress:
                progress(done)
    else:
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(cores, context, _start, worker) as pool:
            for future in as_completed([pool.submit(_score_chunk, *job) for job in jobs]):
                done = future.result()
                if progress:
                    progress(done)
    return pd.concat([read_table(path) for path in paths.values()], ignore_index=True)


_given = None  # one a process: model, tokenizer, what every task is compared with, the projection


def _start(base: Path, path: Path, seed: int) -> None:
    import torch
    from safetensors.torch import load_file

    global _given
    torch.set_num_threads(1)
    (model, tokenizer), tensors = load_model(base), load_file(path)
    size = sum(p.numel() for p in model.parameters())
    _given = model, tokenizer, Reference(**tensors, target_cost={}, warm_up_cost={}), Projection(size, PROJECTED, seed=seed)


def _score_chunk(items: list[Item], path: Path) -> int:
    model, tokenizer, given, project = _given
    rows = []
    with Meter(model, memory=True) as whole:
        for item in items:
            with Meter(model) as meter:
                found = item_scores(model, tokenizer, item, given, project)
            spent = {c: v for c, v in meter.cost().items() if c in SPENT}
            rows.append(dict(zip(KEY, item.key, strict=True)) | {"pass_rate": item.pass_rate} | found | spent)
    write_table(path, pd.DataFrame(rows).assign(peak_bytes=whole.peak_bytes))
    return len(items)


def trak_scores(features: np.ndarray, target: np.ndarray) -> np.ndarray:
    """h' (F'F/n + ridge)^-1 f of each row f of `features` (n, d), h = `target` (d,); rows of zeros count as no task; (n,)."""
    features = np.asarray(features, dtype=float)
    active = features[(features != 0).any(axis=1)]
    if not len(active):
        return np.zeros(len(features))
    kernel = active.T @ active / len(active)
    kernel[np.diag_indices_from(kernel)] += RIDGE * np.trace(kernel) / len(kernel)
    return features @ np.linalg.solve(kernel, np.asarray(target, dtype=float))


def gradient_metrics(scores: pd.DataFrame, given: Reference, *, seed: int) -> pd.DataFrame:
    """`scores` (see all_item_scores) with a column each of GRADIENT_METRICS."""
    features = np.stack(scores["projected"].to_numpy()).astype(float)
    target = Projection(len(given.target), PROJECTED, seed=seed)(given.target).numpy().astype(float)
    norms = np.linalg.norm(features, axis=1) * np.linalg.norm(target)
    p = scores["pass_rate"]
    return scores.assign(
        gradient_norm=scores["norm"],
        learnalign=p * (1 - p) * scores["cosine"],
        less=scores["adam_cosine"],
        trak=trak_scores(features, target),
        cropi=np.divide(features @ target, norms, out=np.zeros(len(norms)), where=norms > 0),
    )
