"""Answers of a demanded form: a JSON schema, a pattern, a number of words. Also an example of how to add a verifier.

A verifier is a module with `check(completion, answer) -> bool`, named in `lad_utils.cohorts.VERIFIERS`. The `answer` of a
format task is JSON with any of {"json_schema": {...}, "regex": "...", "words": [least, most]}; all that are there must hold.
Patterns and schemas are a buyer's and the text is a model's, so both meet in a process with limits.
"""

import json
import re

from lad_utils.limited_worker import LimitedWorker, answer_lines, limit_memory
from lad_utils.verifier import completion_text

KINDS = ("json_schema", "regex", "words")
FENCE = re.compile(r"\s*```(?:json)?\s*\n(.*)\n\s*```\s*", re.DOTALL | re.IGNORECASE)
LONGEST = 50_000  # characters of a completion
WORKER = LimitedWorker("lad_utils.format_verifier")


def format_answer(constraints: dict) -> str:
    """The `answer` of a format task. Raises ValueError for constraints that no completion could be checked against."""
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import SchemaError

    unknown = set(constraints) - set(KINDS)
    if not constraints or unknown:
        raise ValueError(f"format task: found {sorted(constraints)}, expected some of {', '.join(KINDS)}")
    try:
        Draft202012Validator.check_schema(constraints.get("json_schema", {}))
        re.compile(constraints.get("regex", ""))
        least, most = constraints.get("words", (0, 0))
    except (SchemaError, re.error, TypeError, ValueError) as error:
        raise ValueError(f"format task: {type(error).__name__}: {str(error).splitlines()[0][:120]}") from None
    if not 0 <= least <= most:
        raise ValueError(f"format task: words: found {[least, most]}, expected [least, most]")
    return json.dumps(constraints)


def check(completion, answer: str) -> bool:
    """The reward of a format task: the whole text (a JSON value may stand in a fence) obeys every constraint."""
    text = completion_text(completion).strip()
    return len(text) <= LONGEST and WORKER.ask(text, answer)


def _serve() -> None:
    limit_memory()
    from jsonschema import Draft202012Validator
    from referencing import Registry

    def obeys(text: str, answer: str) -> bool:
        constraints = json.loads(answer)
        if "words" in constraints:
            least, most = constraints["words"]
            if not least <= len(text.split()) <= most:
                return False
        if "regex" in constraints and not re.fullmatch(constraints["regex"], text, re.DOTALL):
            return False
        if "json_schema" in constraints:
            fenced = FENCE.fullmatch(text)
            value = json.loads(fenced[1] if fenced else text, parse_constant=int)  # int("NaN") raises: NaN is no JSON
            # An empty registry: a schema that refers to an address is an error, never a request to it.
            return Draft202012Validator(constraints["json_schema"], registry=Registry()).is_valid(value)
        return set(constraints) <= set(KINDS)

    obeys("{}", '{"json_schema": {"type": "object"}}')  # pays the first call's set-up before the clock runs
    answer_lines(obeys)


if __name__ == "__main__":
    _serve()
