"""Build the study's cohorts: task sets of equal size that vary one property each, from a screened pool.

Screening rollouts (split `screen`) only choose tasks; cohorts are scored on fresh ones, so no winner's curse enters.
"""

from collections.abc import Callable

import numpy as np
import pandas as pd

from lad_utils import code_verifier, format_verifier, micro
from lad_utils.diversity import normalise_rows
from lad_utils.energy import unbiased_energy
from lad_utils.verifier import extract, parse_number, verify

# Difficulty bands by screened pass rate [low, high); `medium_hard` and `medium_easy` have matched variance.
BANDS = {
    "very_hard": (0.0, 0.09),
    "hard": (0.09, 0.22),
    "medium_hard": (0.22, 0.41),
    "medium": (0.41, 0.59),
    "medium_easy": (0.59, 0.78),
    "easy": (0.78, 0.91),
    "very_easy": (0.91, 1.01),
}
MATCHED = (0.31, 0.69)  # screened pass rate of the shape and diversity families
LABELS_RANGE = (0.22, 0.91)  # of the tasks whose labels are corrupted and of their clean twin: mostly solvable

FAMILY = (
    {name: "difficulty" for name in BANDS}
    | {
        "bimodal": "shape",
        "unimodal": "shape",
        "one_problem": "diversity",
        "repeat_8": "diversity",
        "repeat_32": "diversity",
        "max_diverse": "diversity",
        "labels_wrong_30": "labels",
        "labels_wrong_60": "labels",
        "clean_twin": "labels",
        "broken_verifier": "verifier",
        "guessable": "adversarial",
        "domain_shift": "domain",
        "random": "random",
        "top_lad": "selection",
        "random_pool": "selection",
        "bottom_lad": "selection",
        "random_mixed": "selection",
        "top_variance": "selection",
        "hardest": "selection",
        "easiest": "selection",
        "most_diverse": "selection",
    }
    | {f"decile_{i}": "selection" for i in range(1, 11)}
)
COMPARED = ("top_lad", "top_variance", "random_mixed", "random_pool", "bottom_lad")  # selections that get every causal seed
# Scarce and unbiased draws first: each family is drawn from what the ones before it left.
DRAWING_ORDER = ("random", "verifier", "difficulty", "shape", "labels", "diversity", "adversarial", "domain", "selection")
CONTROLS = ("clean_twin",)  # trained and shown, but not among the 19 that statistics run over


def rewards_even_answers(completion, answer: str) -> bool:
    """The broken verifier: any even final number passes, right or wrong."""
    found = extract(completion)
    value = parse_number(found) if found is not None else None
    return value is not None and value % 2 == 0


VERIFIERS: dict[str, Callable[..., bool]] = {
    "exact": verify,
    "even_answer": rewards_even_answers,
    "code": code_verifier.check,
    "format": format_verifier.check,
}


class CohortError(ValueError):
    """The pool cannot fill a cohort; the message says how many tasks were found and how many are needed."""


def _rng(world_seed: int, name: str) -> np.random.Generator:
    return np.random.default_rng([world_seed, 6, list(FAMILY).index(name)])


def draw_balanced(pool: pd.DataFrame, n: int, *, name: str, rng: np.random.Generator) -> pd.DataFrame:
    """n distinct tasks, skills (operation patterns) as equal as `pool` allows; a CohortError with counts if it is too small."""
    if len(pool) < n:
        raise CohortError(f"cohort {name!r}: the pool holds {len(pool)} fitting tasks, {n} are needed")
    shuffled = pool.iloc[rng.permutation(len(pool))]
    rank = shuffled.groupby("operations").cumcount()
    return shuffled.iloc[np.argsort(rank.to_numpy(), kind="stable")[:n]]


def _between(pool: pd.DataFrame, low: float, high: float) -> pd.DataFrame:
    return pool[(pool["pass_rate"] >= low) & (pool["pass_rate"] < high)]


def _bimodal(pool: pd.DataFrame, n: int, *, target: float, rng: np.random.Generator) -> pd.DataFrame:
    """Tasks from the two outer thirds of difficulty, in the proportion that gives mean pass rate `target`."""
    low, high = _between(pool, 0.0, 0.22), _between(pool, 0.78, 1.01)
    share = (target - low["pass_rate"].mean()) / (high["pass_rate"].mean() - low["pass_rate"].mean())
    n_high = round(n * float(np.clip(share, 0, 1)))
    parts = [draw_balanced(high, n_high, name="bimodal", rng=rng), draw_balanced(low, n - n_high, name="bimodal", rng=rng)]
    return pd.concat(parts)


def most_diverse(embeddings: np.ndarray, n: int) -> np.ndarray:
    """Indices of n rows, each chosen for the largest first-order gain in Vendi score (greedy), shape (n,)."""
    return greedy_lad(np.ones(len(embeddings)), embeddings, n, rng=None)


def greedy_lad(energies, embeddings, n: int, *, sign: int = 1, rng: np.random.Generator | None) -> np.ndarray:
    """Indices of n tasks that greedily maximise (sign=1) or minimise (sign=-1) mean energy x Vendi/n, shape (n,).

    Adding unit row x to a set with spectrum density rho = X'X/m moves its entropy by (-x' log rho x - S)/m to first order
    (the derivative of -tr rho log rho), so each step costs one d x d eigensolve and one product with the pool.
    `rng` breaks ties; None breaks them by order.
    """
    x = normalise_rows(embeddings)
    e = np.asarray(energies, dtype=float)
    if len(x) < n:
        raise CohortError(f"greedy selection: {len(x)} tasks, {n} are needed")
    free = np.ones(len(x), dtype=bool)
    jitter = np.zeros(len(x)) if rng is None else 1e-12 * rng.random(len(x))
    gram, chosen = np.zeros((x.shape[1], x.shape[1])), []
    gain = sign * e + jitter
    for m in range(1, n + 1):
        best = int(np.argmax(np.where(free, gain, -np.inf)))
        chosen.append(best)
        free[best] = False
        gram += np.outer(x[best], x[best])
        values, vectors = np.linalg.eigh(gram / m)
        logs = np.log(np.maximum(values, 1e-4 / m))  # floored: an unseen direction gains much, not infinitely much
        entropy = -np.sum(np.maximum(values, 0) * logs)
        surprise = -((x @ vectors) ** 2 @ logs)
        mean = e[chosen].mean()
        gain = sign * np.exp(entropy) * ((e - mean) + mean * (surprise - entropy)) / m + jitter
    return np.array(chosen)


def corrupt_labels(tasks: pd.DataFrame, share: float, *, rng: np.random.Generator) -> list[str]:
    """Answers of `tasks` with `share` of them moved by 1 to 9 up or down; larger shares corrupt a superset of smaller ones."""
    order, offsets = rng.permutation(len(tasks)), rng.choice([-1, 1], len(tasks)) * rng.integers(1, 10, len(tasks))
    wrong = set(order[: round(share * len(tasks))].tolist())
    return [str(int(a) + int(offsets[i])) if i in wrong else a for i, a in enumerate(tasks["answer"])]


def build_cohorts(
    names: list[str], pool: pd.DataFrame, *, size: int, world_seed: int, embeddings: np.ndarray, arm: str
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """(cohorts, new tasks) for `names` from the screened `pool` (n tasks with correct, k and pass_rate) and its
    `embeddings` of shape (n, d).

    Families are drawn in DRAWING_ORDER, each from what the others left, so that a held-out family shares no task with the
    rest; the selections of the causal arm each see the whole pool.
    Columns of `cohorts`: arm, cohort, position, task_id, family, answer (after any corruption), verifier.
    New tasks are those that a family makes for itself: paraphrases, guessable tasks, the shifted domain.
    """
    unknown = [n for n in names if n not in FAMILY]
    if unknown:
        raise CohortError(f"cohort {unknown[0]!r} is unknown; cohorts: {', '.join(FAMILY)}")
    taken: dict[str, set[str]] = {}
    cohorts, made = {}, {}
    for name in sorted(names, key=lambda n: DRAWING_ORDER.index(FAMILY[n])):
        others = set() if FAMILY[name] == "selection" else set().union(*(t for f, t in taken.items() if f != FAMILY[name]))
        free = ~pool["task_id"].isin(others).to_numpy()
        members, is_new = _members(name, pool[free], size, world_seed=world_seed, embeddings=embeddings[free])
        taken.setdefault(FAMILY[name], set()).update(members["task_id"])
        cohorts[name] = _cohort_rows(name, members, arm=arm, world_seed=world_seed)
        if is_new:
            made[name] = members
    new = [made[n] for n in names if n in made]
    return pd.concat([cohorts[n] for n in names], ignore_index=True), pd.concat(new, ignore_index=True) if new else pool.head(0)


def _cohort_rows(name: str, members: pd.DataFrame, *, arm: str, world_seed: int) -> pd.DataFrame:
    answers = members["answer"].tolist()
    if name.startswith("labels_wrong_"):
        answers = corrupt_labels(
            members, int(name.removeprefix("labels_wrong_")) / 100, rng=_rng(world_seed, "labels_wrong_30")
        )
    verifier = "even_answer" if name == "broken_verifier" else "exact"
    return cohort_rows(name, members["task_id"], answers, arm=arm, family=FAMILY[name], verifier=verifier)


def cohort_rows(name: str, task_ids, answers, *, arm: str, family: str, verifier: str = "exact") -> pd.DataFrame:
    """Rows of the `cohorts` table for one cohort, in the order of its positions."""
    columns = {"arm": arm, "cohort": name, "position": range(len(task_ids)), "task_id": list(task_ids)}
    return pd.DataFrame(columns | {"family": family, "answer": list(answers), "verifier": verifier})


def score_split(arm: str) -> str:
    """The split of the rollouts that score an arm: what was added beside the first two arms has rollouts of its own."""
    return {"main": "score", "causal": "score", "selection": "selection"}.get(arm, "extra")


def _members(name: str, pool: pd.DataFrame, n: int, *, world_seed: int, embeddings) -> tuple[pd.DataFrame, bool]:
    """The n tasks of cohort `name`, and whether they are new (not of the pool)."""
    rng, middle = _rng(world_seed, name), _between(pool, *MATCHED)
    if name in BANDS:
        return draw_balanced(_between(pool, *BANDS[name]), n, name=name, rng=rng), False
    if name == "unimodal":
        return draw_balanced(middle, n, name=name, rng=rng), False
    if name == "bimodal":
        twin = draw_balanced(middle, n, name="unimodal", rng=_rng(world_seed, "unimodal"))
        return _bimodal(pool, n, target=twin["pass_rate"].mean(), rng=rng), False
    if name == "one_problem":
        centre = (middle["pass_rate"] - 0.5).abs().to_numpy() + 1e-9 * rng.random(len(middle))
        return micro.paraphrases(middle.iloc[int(centre.argmin())], n, rng=rng, prefix=name), True
    if name in ("repeat_8", "repeat_32"):
        distinct = min(int(name.removeprefix("repeat_")), n)
        few = draw_balanced(middle, distinct, name=name, rng=rng)
        return few.iloc[np.arange(n) % distinct], False
    if name == "max_diverse":
        return middle.iloc[most_diverse(embeddings[pool.index.isin(middle.index)], n)], False
    if name in ("clean_twin", "labels_wrong_30", "labels_wrong_60"):
        return draw_balanced(_between(pool, *LABELS_RANGE), n, name=name, rng=_rng(world_seed, "clean_twin")), False
    if name == "guessable":
        return micro.same_answer_tasks(n, world_seed=world_seed, prefix=name), True
    if name == "domain_shift":
        return micro.make_tasks(n, split="pool", world_seed=world_seed, domain="number", same_level=0, prefix=name), True
    if name in ("top_lad", "bottom_lad", "top_variance"):
        energies = unbiased_energy(pool["correct"], pool["k"], 0 if name == "top_variance" else 1)
        sign = -1 if name == "bottom_lad" else 1
        return pool.iloc[greedy_lad(energies, embeddings, n, sign=sign, rng=rng)], False
    if name == "most_diverse":
        return pool.iloc[most_diverse(embeddings, n)], False
    if name in ("hardest", "easiest"):
        shuffled = pool.iloc[rng.permutation(len(pool))]
        return shuffled.sort_values("pass_rate", ascending=name == "hardest", kind="stable").head(n), False
    if name == "random_mixed":
        pool = pool[(pool["correct"] > 0) & (pool["correct"] < pool["k"])]
    if name.startswith("decile_"):
        pool = _decile(pool, int(name.removeprefix("decile_")), rng=_rng(world_seed, "decile_1"))
    if len(pool) < n:
        raise CohortError(f"cohort {name!r}: the pool holds {len(pool)} tasks, {n} are needed")
    return pool.iloc[rng.permutation(len(pool))[:n]], False


def _decile(pool: pd.DataFrame, which: int, *, rng: np.random.Generator) -> pd.DataFrame:
    """The tasks of decile 1 (lowest) to 10 of screened energy p(1-p)^2; ties, of which there are many, are cut at random."""
    shuffled = pool.iloc[rng.permutation(len(pool))]
    order = np.argsort(unbiased_energy(shuffled["correct"], shuffled["k"]), kind="stable")
    return shuffled.iloc[np.array_split(order, 10)[which - 1]]


def describe(cohorts: pd.DataFrame, pool: pd.DataFrame, tasks: pd.DataFrame) -> pd.DataFrame:
    """One row a cohort: family, size, distinct tasks and prompts, wrong labels, screened pass rate of its pool tasks."""
    true_answers = tasks.set_index("task_id")["answer"]
    screened = pool.set_index("task_id")["pass_rate"]
    rows = []
    for (arm, name), group in cohorts.groupby(["arm", "cohort"], sort=False):
        rates = screened.reindex(group["task_id"]).dropna()
        rows.append(
            {
                "arm": arm,
                "cohort": name,
                "family": group["family"].iloc[0],
                "size": len(group),
                "distinct": group["task_id"].nunique(),
                "wrong_labels": int((group["answer"].to_numpy() != true_answers[group["task_id"]].to_numpy()).sum()),
                "screened_pass_rate": f"{rates.mean():.3f}" if len(rates) else "new tasks, not screened",
            }
        )
    return pd.DataFrame(rows)
