"""Read any task file (JSONL, JSON, CSV, Parquet; GSM8K, MATH, chat or verl schemas) into one table and list its bad rows.

    {"question": "Tom has ...", "answer": "12 + 7 = 19\\n#### 19"}  becomes  task_id "train-1", prompt "Tom ...", answer "19"

No row is dropped in silence: every rejected one is listed with its line, the reason and an excerpt.
"""

import csv
import gzip
import io
import json
import os
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import pandas as pd
import pyarrow.parquet

from lad_utils.verifier import gold_answer

PROMPT_FIELDS = ("prompt", "question", "problem")
ANSWER_FIELDS = ("answer", "ground_truth", "reward_model.ground_truth", "solution")
EXCERPT = 120
SHORTEST_CONTAINED = 40  # normalised characters; shorter prompts must be equal to count as overlap


class RowError(ValueError):
    """One row cannot be used; the message is `kind: found ..., expected ...`."""


def _short(value) -> str:
    return repr(value)[:EXCERPT]


def _parse_line(raw: bytes):
    try:
        return json.loads(raw.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        return RowError(f"malformed JSON: found {type(error).__name__} ({str(error)[:80]}), expected one JSON object")


def _read_csv(text: str) -> Iterator[tuple[int, object]]:
    # The csv module keeps every field a string ("016" stays "016"); pandas would guess types and blank out "NA".
    csv.field_size_limit(2**31 - 1)
    reader = csv.DictReader(io.StringIO(text, newline=""))
    for record in reader:
        if None in record or None in record.values():
            found = "more" if None in record else "fewer"
            record = RowError(f"malformed CSV: found {found} fields than the header has, expected {len(reader.fieldnames)}")
        yield reader.line_num, record


def _read_records(path: Path) -> Iterator[tuple[int, object]]:
    """(line or row number from 1, record or RowError) of every row; blank lines are no rows."""
    if not path.is_file():
        raise FileNotFoundError(
            f"{path}: no such task file, expected .jsonl, .json, .csv or .parquet (JSON and CSV also as .gz)"
        )
    raw = path.read_bytes()
    raw = gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw
    raw = raw.removeprefix(b"\xef\xbb\xbf")
    kind = next((suffix for suffix in reversed(path.suffixes) if suffix != ".gz"), "").lower()
    if kind == ".parquet":
        yield from enumerate(pyarrow.parquet.read_table(io.BytesIO(raw)).to_pylist(), start=1)
    elif kind == ".csv":
        yield from _read_csv(raw.decode("utf-8"))
    elif kind in (".json", ".jsonl", ".ndjson") and raw.lstrip()[:1] == b"[":
        rows = _parse_line(raw)
        yield from enumerate([rows] if isinstance(rows, RowError) else rows, start=1)
    elif kind in (".json", ".jsonl", ".ndjson"):
        # Split at b"\n" only: str.splitlines would also cut at U+2028 inside a JSON string.
        for line, text in enumerate(raw.split(b"\n"), start=1):
            if text.strip():
                yield line, _parse_line(text.strip())
    else:
        raise ValueError(f"{path}: found the ending {kind!r}, expected .jsonl, .json, .csv or .parquet")


def _turn(messages: list, role: str) -> object:
    """Content of the last turn of `role`; RowError if there is none."""
    turns = [message for message in messages if isinstance(message, dict) and message.get("role") == role]
    if not turns:
        raise RowError(f"messages: found no {role} turn in {_short(messages)}, expected one")
    return turns[-1].get("content")


def _lookup(record: dict, field: str) -> object:
    outer, _, inner = field.partition(".")
    value = record.get(outer)
    return (value.get(inner) if isinstance(value, dict) else None) if inner else value


def _first_field(record: dict, fields: Iterable[str], role: str) -> tuple[str, object]:
    """Name and value of the first field that is present and not null, else the `role` turn of `messages`."""
    for field in fields:
        value = _lookup(record, field)
        if value is not None:
            return field, value
    if isinstance(record.get("messages"), list):
        return "messages", _turn(record["messages"], role)
    return "", None


def _task(record: object, default_id: str) -> dict:
    """One row of the table; raises RowError, naming the field, what was found and what was expected."""
    if isinstance(record, RowError):
        raise record
    if not isinstance(record, dict):
        raise RowError(f"malformed row: found {type(record).__name__} {_short(record)}, expected an object with named fields")
    prompt_field, prompt = _first_field(record, PROMPT_FIELDS, "user")
    if isinstance(prompt, list):
        prompt = _turn(prompt, "user")
    if not isinstance(prompt, str) or not prompt.strip():
        raise RowError(f"prompt: found {_short(prompt)}, expected text in {', '.join(PROMPT_FIELDS)} or messages")
    answer_field, stated = _first_field(record, ANSWER_FIELDS, "assistant")
    answer = gold_answer(stated)
    if answer is None:
        where = ", ".join(ANSWER_FIELDS)
        raise RowError(f"answer: found {_short(stated)}, expected a number, LaTeX or a full solution in {where} or messages")
    task_id = default_id if record.get("task_id") in (None, "") else str(record["task_id"])
    if any("\ud800" <= character <= "\udfff" for character in task_id + prompt + answer):
        raise RowError(f"prompt: found half a surrogate pair in {_short(prompt)}, expected valid Unicode")
    used = {"task_id", prompt_field, answer_field.partition(".")[0], "messages", "prompt", "answer"}
    extra = {str(name): value for name, value in record.items() if name not in used}
    return {"task_id": task_id, "prompt": prompt, "answer": answer} | extra


def _write_rejects(path: Path, rejects: list[dict]) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with open(temporary, "w", encoding="utf-8") as file:
        file.writelines(json.dumps(reject) + "\n" for reject in rejects)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def load_tasks(path, *, max_bad_share: float = 0.05, rejects=None) -> pd.DataFrame:
    """Task table of the file at `path`: columns task_id, prompt, answer (all str), then the other columns of the input.

    Rejected rows (malformed, no prompt, no usable answer, repeated task_id) are in `.attrs["rejects"]`, a list of
    {"line", "reason", "excerpt"}, are written to the JSONL file `rejects` if given, and are counted in one warning.
    `.attrs["duplicate_prompts"]` counts the rows whose prompt an earlier row had; they are kept.
    Raises ValueError for an empty file and for a share of bad rows above `max_bad_share`.
    """
    path, rows, rejected, seen = Path(path), [], [], set()
    stem = path.name.split(".")[0]
    for line, record in _read_records(path):
        try:
            row = _task(record, f"{stem}-{line}")
            if row["task_id"] in seen:
                raise RowError(f"task_id: found {row['task_id']!r} again, expected it once")
        except RowError as error:
            excerpt = "" if isinstance(record, RowError) else _short(record)
            rejected.append({"line": line, "reason": str(error), "excerpt": excerpt})
        else:
            seen.add(row["task_id"])
            rows.append(row)
    if rejects is not None:
        _write_rejects(Path(rejects), rejected)
    total = len(rows) + len(rejected)
    if total == 0:
        raise ValueError(f"{path}: found no rows, expected at least one task")
    if len(rejected) > max_bad_share * total or not rows:
        first = "; ".join(f"line {reject['line']}: {reject['reason']}" for reject in rejected[:3])
        raise ValueError(
            f"{path}: found {len(rejected)} bad rows of {total}, expected at most {max_bad_share:.0%}; first: {first}"
        )
    if rejected:
        kinds = Counter(reject["reason"].split(":")[0] for reject in rejected)
        listed = ", ".join(f"{kind} {count}" for kind, count in kinds.most_common())
        warnings.warn(f"{path}: rejected {len(rejected)} of {total} rows ({listed})", stacklevel=2)
    columns = list(dict.fromkeys(name for row in rows for name in row))
    table = pd.DataFrame({name: pd.Series([row.get(name) for row in rows], dtype=object) for name in columns})
    table = table.astype({"task_id": "str", "prompt": "str", "answer": "str"})
    table.attrs["rejects"] = rejected
    table.attrs["duplicate_prompts"] = int(table["prompt"].duplicated().sum())
    return table


def normalise_prompt(text: str) -> str:
    """Lower-case letters and digits only, so that case, spacing and punctuation do not hide a repeated prompt."""
    return "".join(character for character in text.lower() if character.isalnum())


def overlap(prompts: Iterable[str], reference_prompts: Iterable[str]) -> list[bool]:
    """For each prompt, whether it equals a reference prompt after normalising, or stands inside one (a few-shot header)."""
    reference = [normalise_prompt(text) for text in reference_prompts]
    known, joined = set(reference) - {""}, "\n".join(reference)
    normalised = [normalise_prompt(text) for text in prompts]
    return [text in known or (len(text) >= SHORTEST_CONTAINED and text in joined) for text in normalised]
