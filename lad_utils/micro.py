"""The micro world: word problems whose difficulty hangs on wording and not on skill.

A task looks like this (verbs carry the difficulty, everything else is neutral):

    prompt      Tom has 12 apples . Tom buys 7 . then Tom scales 3 . how many apples ?
    expression  (7+12)*3            canonical: no wording, and the same for (12+7)*3 and (7+12)*3
    verbs       buys scales         five a operation, each with its own corruption level in pretraining
    solution    12 + 7 = 19 ; 19 * 3 = 57 ; #### 57

In pretraining a step's result is wrong with the probability that its verb carries, as web text holds wrong solutions.
So the base model knows more than it samples (`elicit`), and how often a task is solved depends on its verbs alone:
operations and difficulty are independent by design. Pool, evaluation and target tasks never share an expression.

A second base model (`gaps`) comes from text whose arithmetic is nearly always right, but in which the same verbs are the rarer
and the more often misused, another operation being meant, the higher their level. Of the rarest ones it believes the wrong
thing even when it decodes greedily, so that reinforcement learning has to teach rather than elicit.
"""

import hashlib

import numpy as np
import pandas as pd

NAMES = ["Tom", "Ann", "Sam", "Eva", "Max", "Lia", "Ben", "Zoe", "Ian", "Mia", "Leo", "Ida"]
NOUNS = [
    "apples",
    "pears",
    "books",
    "coins",
    "shells",
    "cards",
    "stones",
    "pens",
    "eggs",
    "cups",
    "keys",
    "stamps",
    "balls",
    "cakes",
    "seeds",
    "toys",
]
OPENERS = ("{name} has {a} {noun} .", "{name} starts with {a} {noun} .", "there are {a} {noun} with {name} .")
LINKS = ("then", "next", "later", "after that")
QUESTIONS = ("how many {noun} ?", "how many {noun} now ?", "what is the number of {noun} ?", "count the {noun} .")
PHRASE = "{name} {verb} {b} ."  # the verb alone tells the operation, so that the model must read it
VERBS = {
    "+": ["buys", "finds", "wins", "picks", "gets"],
    "-": ["eats", "sells", "loses", "drops", "gives"],
    "*": ["multiplies", "scales", "expands", "grows", "replicates"],
}
# The shifted domain: bare numbers, its own verbs, the same arithmetic.
NUMBER_VERBS = {
    "+": ["add", "append", "join"],
    "-": ["subtract", "deduct", "remove"],
    "*": ["multiply", "scale", "expand"],
}
NUMBER_PHRASE = "{verb} {b} ."
OPERATIONS = "+-*"
LEVELS = (0.0, 0.15, 0.35, 0.58, 0.82)
NUMBER_LEVELS = (0.1, 0.4, 0.7)
# `gaps`, a verb's level by level: how often it stands for its operation relative to the others, and how often another
# operation is meant; any step is worked out wrongly with GAPS_ERROR.
RARITY, MISUSE = (1.0, 0.3, 0.1, 0.03, 0.01), (0.0, 0.1, 0.3, 0.55, 0.85)
NUMBER_RARITY, NUMBER_MISUSE = (1.0, 0.1, 0.01), (0.05, 0.4, 0.8)
GAPS_ERROR = 0.05
LARGEST = 60
SPLIT_SHARES = (("pool", 0.7), ("eval", 0.15), ("target", 0.15))
HELD_OUT_PATTERNS = ("-+", "*-")  # skill patterns that no pool task has, so that lifts on unseen patterns can be told apart


def verb_levels(world_seed: int) -> dict[str, float]:
    """Corruption probability of every verb in the world drawn with `world_seed`."""
    rng = np.random.default_rng([world_seed, 1])
    levels = {}
    for verbs, values in ((VERBS, LEVELS), (NUMBER_VERBS, NUMBER_LEVELS)):
        for op in OPERATIONS:
            levels.update(zip(verbs[op], rng.permutation(values).tolist(), strict=True))
    return levels


def verb_gaps(world_seed: int) -> tuple[dict[str, float], dict[str, float]]:
    """(shares, misuse) of every verb in the pretraining text of `gaps`.

    A verb's share is how often it is the one that stands for its operation, its misuse how often another is meant by it.
    """
    levels, shares, misuse = verb_levels(world_seed), {}, {}
    number = NUMBER_VERBS, NUMBER_LEVELS, NUMBER_RARITY, NUMBER_MISUSE
    for verbs, values, rarity, misused in ((VERBS, LEVELS, RARITY, MISUSE), number):
        for verb in (v for op in OPERATIONS for v in verbs[op]):
            rank = values.index(levels[verb])
            shares[verb], misuse[verb] = rarity[rank] / sum(rarity), misused[rank]
    return shares, misuse


def split_of(expression: str, world_seed: int) -> str:
    """The only split (`pool`, `eval` or `target`) of a world that may hold `expression`: a hash, so sets are disjoint."""
    u = int.from_bytes(hashlib.blake2b(f"{world_seed}/{expression}".encode(), digest_size=8).digest(), "big") / 2**64
    for split, share in SPLIT_SHARES:
        if u < share:
            return split
        u -= share
    return SPLIT_SHARES[-1][0]


def _apply(x: int, op: str, b: int) -> int:
    return x + b if op == "+" else x - b if op == "-" else x * b


def _arithmetic(operations: str, rng: np.random.Generator) -> tuple[int, list[int]]:
    """Start and operands whose intermediate results all stay in 1..LARGEST (rejection sampling)."""
    while True:
        x = start = int(rng.integers(2, 21))
        operands = []
        for op in operations:
            b = int(rng.integers(2, 5)) if op == "*" else int(rng.integers(1, 10))
            x = _apply(x, op, b)
            operands.append(b)
            if not 1 <= x <= LARGEST:
                break
        else:
            return start, operands


def expression_of(start: int, operations: str, operands: list[int]) -> str:
    """Canonical expression: terms of a sum and factors of a product in order, so that 12+7-3 and 7-3+12 are one."""
    kind, parts = ("*" if operations[0] == "*" else "+"), [str(start)]  # a product's factors, or a sum's signed terms
    for op, b in zip(operations, operands, strict=True):
        if (op == "*") != (kind == "*"):
            parts, kind = ([_joined("*", parts)], "+") if kind == "*" else ([f"({_joined('+', parts)})"], "*")
        parts.append(f"-{b}" if op == "-" else str(b))
    return _joined(kind, parts)


def _joined(kind: str, parts: list[str]) -> str:
    if kind == "*":
        return "*".join(sorted(parts))
    return "+".join(sorted(parts, key=lambda p: (p.startswith("-"), p))).replace("+-", "-")


def render(task: dict, rng: np.random.Generator) -> str:
    """A prompt for `task` (start, operations, operands, verbs, domain) in a random neutral wording."""
    name, noun = rng.choice(NAMES), rng.choice(NOUNS)
    number = task["domain"] == "number"
    parts = [(("begin with {a} .") if number else str(rng.choice(OPENERS))).format(name=name, noun=noun, a=task["start"])]
    for i, (b, verb) in enumerate(zip(task["operands"], task["verbs"].split(), strict=True)):
        phrase = (NUMBER_PHRASE if number else PHRASE).format(name=name, verb=verb, b=b)
        parts.append(f"{rng.choice(LINKS)} {phrase}" if i else phrase)
    parts.append("what is the result ?" if number else str(rng.choice(QUESTIONS)).format(noun=noun))
    return " ".join(parts)


def draw_task(
    rng: np.random.Generator,
    *,
    levels: dict[str, float],
    n_steps: int,
    domain: str = "story",
    same_level: float = 0.0,
    shares: dict[str, float] | None = None,
) -> dict:
    """One random task. With probability `same_level` all its verbs share a level, which fills the outer difficulty bands.

    `shares` says how often a verb stands for its operation; None: all equally often.
    """
    operations = "".join(rng.choice(list(OPERATIONS), n_steps))
    start, operands = _arithmetic(operations, rng)
    verbs = NUMBER_VERBS if domain == "number" else VERBS
    if rng.random() < same_level:
        level = rng.choice(NUMBER_LEVELS if domain == "number" else LEVELS)
        chosen = [next(v for v in verbs[op] if levels[v] == level) for op in operations]
    else:
        weights = {op: None if shares is None else [shares[v] for v in verbs[op]] for op in operations}
        chosen = [str(rng.choice(verbs[op], p=weights[op])) for op in operations]
    task = {"start": start, "operations": operations, "operands": operands, "verbs": " ".join(chosen), "domain": domain}
    task["expression"] = expression_of(start, operations, operands)
    task["prompt"] = render(task, rng)
    return task


def gold(task: dict) -> int:
    x = task["start"]
    for op, b in zip(task["operations"], task["operands"], strict=True):
        x = _apply(x, op, b)
    return x


def solution(
    task: dict,
    levels: dict[str, float] | None = None,
    rng: np.random.Generator | None = None,
    misuse: dict[str, float] | None = None,
) -> str:
    """Worked solution; with `levels`, each step's result is corrupted with its verb's probability (pretraining text).

    With `misuse` a step takes another operation than its verb's with the verb's probability, if one keeps to 1..LARGEST.
    """
    x, steps = task["start"], []
    for op, b, verb in zip(task["operations"], task["operands"], task["verbs"].split(), strict=True):
        if misuse and rng.random() < misuse[verb]:
            others = [o for o in OPERATIONS if o != op and 1 <= _apply(x, o, b) <= LARGEST]
            op = str(rng.choice(others)) if others else op
        y = _apply(x, op, b)
        if levels and rng.random() < levels[verb]:
            wrong = [v for v in range(max(1, y - 9), min(LARGEST, y + 9) + 1) if v != y]
            y = int(rng.choice(wrong)) if wrong else y + 1
        steps.append(f"{x} {op} {b} = {y} ;")
        x = y
    return " ".join(steps) + f" #### {x}"


def solution_of(row: pd.Series) -> str:
    """The right worked solution of a row of `tasks`."""
    operands = [int(b) for b in row["operands"].split()]
    return solution({"start": int(row["start"]), "operations": row["operations"], "operands": operands, "verbs": row["verbs"]})


def make_tasks(
    n: int, *, split: str, world_seed: int, domain: str = "story", n_steps: int = 2, same_level: float = 0.35, prefix: str = ""
) -> pd.DataFrame:
    """`n` tasks with distinct (expression, verbs) from `split` of the world; the pool lacks HELD_OUT_PATTERNS.

    Columns: task_id, prompt, answer (str), source, split, domain, expression, operations, verbs, n_steps, start, operands.
    """
    levels = verb_levels(world_seed)
    salt = int.from_bytes(hashlib.blake2b(f"{split}/{domain}/{n_steps}".encode(), digest_size=4).digest(), "big")
    rng = np.random.default_rng([world_seed, 2, salt])
    rows, seen, tries = [], set(), 0
    while len(rows) < n:
        tries += 1
        if tries > 200 * n + 10_000:
            raise ValueError(f"make_tasks: found only {len(rows)} of {n} distinct {domain} tasks for split {split!r}")
        task = draw_task(rng, levels=levels, n_steps=n_steps, domain=domain, same_level=same_level)
        key = (task["expression"], task["verbs"])
        held_out = split == "pool" and task["operations"] in HELD_OUT_PATTERNS
        if key in seen or held_out or split_of(task["expression"], world_seed) != split:
            continue
        seen.add(key)
        rows.append({"task_id": f"{prefix or split}-{len(rows):05d}"} | task_row(task, split))
    return pd.DataFrame(rows)


def task_row(task: dict, split: str) -> dict:
    return {
        "prompt": task["prompt"],
        "answer": str(gold(task)),
        "source": f"micro/{task['domain']}",
        "split": split,
        "domain": task["domain"],
        "expression": task["expression"],
        "operations": task["operations"],
        "verbs": task["verbs"],
        "n_steps": len(task["operations"]),
        "start": task["start"],
        "operands": " ".join(map(str, task["operands"])),
    }


def paraphrases(row: pd.Series, n: int, *, rng: np.random.Generator, prefix: str) -> pd.DataFrame:
    """`n` distinct wordings of one task: same expression and verbs (so the same difficulty), other names, nouns, frames."""
    task = {
        "start": int(row["start"]),
        "operations": row["operations"],
        "operands": [int(b) for b in row["operands"].split()],
        "verbs": row["verbs"],
        "domain": row["domain"],
        "expression": row["expression"],
    }
    prompts: dict[str, None] = {}
    for _ in range(1000 * n):
        prompts.setdefault(render(task, rng))
        if len(prompts) == n:
            break
    else:
        raise ValueError(f"paraphrases: task {row['task_id']} has only {len(prompts)} distinct wordings, {n} asked")
    rows = [{"task_id": f"{prefix}-{i:05d}"} | task_row(task | {"prompt": p}, row["split"]) for i, p in enumerate(prompts)]
    return pd.DataFrame(rows)


def same_answer_tasks(n: int, *, world_seed: int, prefix: str, answer: int = 24) -> pd.DataFrame:
    """`n` pool tasks whose answer is always `answer`, so that it can be guessed without solving anything."""
    levels = verb_levels(world_seed)
    rng = np.random.default_rng([world_seed, 3])
    rows, seen = [], set()
    while len(rows) < n:
        task = draw_task(rng, levels=levels, n_steps=2)
        key = (task["expression"], task["verbs"])
        in_pool = split_of(task["expression"], world_seed) == "pool" and task["operations"] not in HELD_OUT_PATTERNS
        fits = gold(task) == answer and in_pool
        if not fits or key in seen:
            continue
        seen.add(key)
        rows.append({"task_id": f"{prefix}-{len(rows):05d}"} | task_row(task, "pool"))
    return pd.DataFrame(rows)
