"""One record in any of the usual schemas (GSM8K, MATH, chat, verl, TRL) into one row: task_id, prompt, answer, the rest."""

import functools
import re
from collections.abc import Iterable

from lad_utils.code_verifier import code_answer
from lad_utils.format_verifier import format_answer
from lad_utils.task_files import RowError
from lad_utils.task_sources import short
from lad_utils.verifier import gold_answer

PROMPT_FIELDS = ("prompt", "question", "problem")
ANSWER_FIELDS = ("answer", "ground_truth", "reward_model.ground_truth", "solution")
DEEPEST = 50  # nested levels of a value
CACHED = 60  # characters of the longest gold worth remembering


def _absent(value) -> bool:
    return value is None or value != value or (isinstance(value, str) and not value.strip())


def _lookup(record: dict, field: str) -> object:
    outer, _, inner = field.partition(".")
    nested = record.get(outer) if inner else None
    return nested.get(inner) if isinstance(nested, dict) else record.get(field)


def _first_field(record: dict, fields: Iterable[str]) -> tuple[str, object]:
    """Name and value of the first field that holds something, else of the first that is there at all."""
    found = [(field, value) for field in fields if (value := _lookup(record, field)) is not None]
    return next((pair for pair in found if not _absent(pair[1])), found[0] if found else ("", None))


def _content(turn) -> object:
    """What a chat turn says; parts {"type": "text", "text": ...} are joined, and parts of other types are left as they are."""
    content = turn.get("content") if isinstance(turn, dict) else None
    parts = [part.get("text") if isinstance(part, dict) else None for part in content] if isinstance(content, list) else [None]
    return "\n".join(parts) if parts and all(isinstance(part, str) for part in parts) else content


def _last_user(turns: list) -> int:
    users = [place for place, turn in enumerate(turns) if isinstance(turn, dict) and turn.get("role") == "user"]
    if not users:
        raise RowError("malformed chat", f"messages: found no user turn in {short(turns)}, expected one")
    return users[-1]


def _closing_turn(turns: list) -> object:
    """What the last assistant turn after the last user turn says: an earlier one is a few-shot example's answer, no gold."""
    after = turns[_last_user(turns) + 1 :]
    answers = [turn for turn in after if isinstance(turn, dict) and turn.get("role") == "assistant"]
    if not answers:
        raise RowError("missing answer", f"messages: found no assistant turn after the last user turn in {short(turns)}")
    return _content(answers[-1])


_short_gold = functools.lru_cache(maxsize=65536)(gold_answer)


def _gold(stated) -> str | None:
    """`gold_answer`, with less work: the first `####` decides, whatever stands before it, and short golds repeat often."""
    if isinstance(stated, str):
        stated = stated[max(stated.find("####"), 0) :]
        return _short_gold(stated) if len(stated) <= CACHED else gold_answer(stated)
    return gold_answer(stated)


def _identity(value, default: str) -> str:
    if _absent(value):
        return default
    value = int(value) if isinstance(value, float) and value.is_integer() else value
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        raise RowError("malformed row", f"task_id: found {short(value)}, expected text or a whole number")
    return str(value)


def _fault(value, levels: int = DEEPEST) -> str:
    """What keeps `value` out of a UTF-8 or Parquet file, "" if nothing does."""
    if isinstance(value, str):
        return "half a surrogate pair" if not value.isascii() and re.search(r"[\ud800-\udfff]", value) else ""
    if not isinstance(value, (dict, list, tuple)):
        return ""
    parts = (*value, *value.values()) if isinstance(value, dict) else value
    faults = (_fault(part, levels - 1) for part in parts) if levels else [f"more than {DEEPEST} nested levels"]
    return next(filter(None, faults), "")


def _checked(record: dict) -> tuple[str, str | None]:
    """Verifier and answer of a task that has no answer but tests (HumanEval's fields) or constraints on the text's form."""
    try:
        if not _absent(record.get("test")) and not _absent(record.get("entry_point")):
            return "code", code_answer(record.get("prompt"), record["test"], record["entry_point"])
        if not _absent(record.get("constraints")):
            return "format", format_answer(record["constraints"])
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise RowError("unusable answer", f"answer: {type(error).__name__}: {short(str(error))}") from None
    return "", None


def task_row(record: object, default_id: str) -> dict:
    """One row of the table; raises RowError, naming the field, what was found and what was expected."""
    if not isinstance(record, dict):
        found = f"{type(record).__name__} {short(record)}"
        raise RowError("malformed row", f"malformed row: found {found}, expected an object with named fields")
    prompt_field, prompt = _first_field(record, PROMPT_FIELDS)
    messages = record.get("messages") if isinstance(record.get("messages"), list) else None
    turns = prompt if isinstance(prompt, list) else []
    if _absent(prompt) and messages is not None:
        # A turn after the last user's holds the gold; in a `prompt` list it is a prefix for the answer, so it stays there.
        prompt_field, turns = "messages", messages[: _last_user(messages) + 1]
    if turns or isinstance(prompt, list):
        prompt = _content(turns[_last_user(turns)])
    if not isinstance(prompt, str) or not prompt.strip():
        kind, where = "missing prompt" if _absent(prompt) else "unusable prompt", ", ".join(PROMPT_FIELDS)
        reason = f"prompt: found {short(prompt)} among the fields {short(list(record))}, expected text in {where} or messages"
        raise RowError(kind, reason)
    for turn in turns:
        if not isinstance(_content(turn), str) or not isinstance(turn.get("role"), str):
            raise RowError("malformed chat", f"messages: found the turn {short(turn)}, expected a role and text content")
    answer_field, stated = _first_field(record, ANSWER_FIELDS)
    if _absent(stated) and messages is not None:
        stated = _closing_turn(messages)
    verifier, answer = _checked(record) if _absent(stated) else ("", None)
    answer = answer or _gold(stated)
    if answer is None:
        kind, where = "missing answer" if _absent(stated) else "unusable answer", ", ".join(ANSWER_FIELDS)
        found = short(stated)
        raise RowError(kind, f"answer: found {found}, expected a number, LaTeX or a full solution in {where} or messages")
    row = {"task_id": _identity(record.get("task_id"), default_id), "prompt": prompt, "answer": answer}
    row |= {"messages": turns} if len(turns) > 1 else {}
    row |= {"verifier": verifier} if verifier else {}
    # A chat that did not become the prompt may hold the answer: under its own name it would be taken for the prompt.
    # The input's own word for a verifier never decides how a row with tests or constraints is judged.
    renamed = {"messages": "source_messages"} | ({"verifier": "source_verifier"} if verifier else {})
    for name, value in record.items():
        if name not in ("task_id", "prompt", "answer", prompt_field, answer_field):
            row[renamed.get(name, name)] = None if isinstance(value, float) and value != value else value
    for name, value in row.items():
        if fault := _fault(name) or _fault(value):
            name = short(name) if _fault(name) else name
            raise RowError("malformed value", f"{name}: found {fault} in {short(value)}, expected flat, valid Unicode")
    return row


def prompt_text(row: dict) -> str:
    """All that a row asks: the turns of its chat, joined by newlines, or its prompt."""
    return "\n".join(map(_content, row["messages"])) if "messages" in row else row["prompt"]
