"""Claims about answers of a demanded form: every constraint counts, no pattern or text hangs or reaches out."""

import http.server
import json
import threading
import time

import pytest

from lad_utils import limited_worker
from lad_utils.cohorts import VERIFIERS
from lad_utils.format_verifier import LONGEST, WORKER, check, format_answer
from lad_utils.tasks import load_tasks

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 0}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


def obeys(text, **constraints):
    return VERIFIERS["format"](text, format_answer(constraints))


@pytest.mark.parametrize(
    "text, right",
    [
        ('{"name": "Ada", "age": 36}', True),
        ('```json\n{"name": "Ada", "age": 36}\n```', True),
        (' \n{"name": "Ada", "age": 36.0}\n', True),  # JSON Schema: a number without fraction is an integer
        ('{"name": "Ada", "age": "36"}', False),
        ('{"name": "Ada", "age": true}', False),
        ('{"name": "Ada", "age": -1}', False),
        ('{"name": "Ada", "age": NaN}', False),
        ('{"name": "Ada", "age": Infinity}', False),
        ('{"name": "Ada"}', False),
        ('{"name": "Ada", "age": 36, "x": 1}', False),
        ('Here it is: {"name": "Ada", "age": 36}', False),
        ('{"name": "Ada", "age": 36} and more', False),
        ("{'name': 'Ada', 'age': 36}", False),
        ("[" * 100_000, False),
        ("", False),
    ],
)
def test_a_json_schema_holds_for_the_whole_text(text, right):
    assert obeys(text, json_schema=PERSON) is right


def test_a_regex_matches_the_whole_text_and_words_are_counted_by_white_space():
    assert obeys("2026-12-07", regex=r"\d{4}-\d\d-\d\d")
    assert not obeys("on 2026-12-07", regex=r"\d{4}-\d\d-\d\d")
    assert not obeys("2026-12-07\n2026", regex=r"\d{4}-\d\d-\d\d")
    assert obeys("one two\nthree", words=[3, 3]) and obeys("", words=[0, 2])
    assert not obeys("one two", words=[3, 9]) and not obeys("one two three four", words=[1, 3])
    assert obeys([{"role": "assistant", "content": "yes"}], words=[1, 1], regex="yes|no")
    assert not obeys("maybe", words=[1, 1], regex="yes|no")  # each of several constraints is needed
    assert not obeys("yes yes", words=[1, 1], regex="[yes ]+")


def test_a_pattern_that_never_ends_is_wrong_and_the_next_answer_is_judged(monkeypatch):
    begun = time.monotonic()
    assert not obeys("a" * 40 + "!", regex="(a+)+b")
    assert time.monotonic() - begun < limited_worker.WALL_SECONDS
    assert obeys("aab", regex="(a+)+b")
    assert not obeys("a" * 40 + "!", json_schema={"type": "string", "pattern": "^(a+)+b$"})
    assert not check("a" * (LONGEST + 1), format_answer({"regex": "a*"}))


def test_a_schema_never_asks_an_address():
    asked = []

    class Server(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"{}")

    with http.server.HTTPServer(("127.0.0.1", 0), Server) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        assert not obeys("{}", json_schema={"$ref": f"http://127.0.0.1:{server.server_address[1]}/schema.json"})
        assert not obeys("{}", json_schema={"$ref": "file:///etc/hostname"})
        server.shutdown()
    assert asked == []
    assert obeys("1", json_schema={"$defs": {"n": {"type": "integer"}}, "$ref": "#/$defs/n"})


@pytest.mark.parametrize(
    "constraints, said",
    [
        ({}, "expected some of"),
        ({"regexp": "a"}, "regexp"),
        ({"regex": "("}, "missing \\)"),
        ({"regex": 3}, "TypeError"),
        ({"words": [3, 2]}, "expected \\[least, most\\]"),
        ({"words": "many"}, "ValueError"),
        ({"json_schema": {"type": "number?"}}, "SchemaError"),
    ],
)
def test_constraints_that_nothing_can_obey_are_refused_before_the_first_rollout(constraints, said):
    with pytest.raises(ValueError, match=f"format task: .*{said}"):
        format_answer(constraints)


def test_a_buyers_rows_with_constraints_are_format_tasks_and_bad_ones_are_reported(tmp_path):
    path = tmp_path / "forms.jsonl"
    rows = [
        {"task_id": "a", "prompt": "A date.", "constraints": {"regex": r"\d{4}"}},
        {"task_id": "b", "prompt": "Two words.", "constraints": {"words": [2, 2]}, "verifier": "exact"},
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    table = load_tasks(path)
    assert table["verifier"].tolist() == ["format", "format"]
    assert table["source_verifier"].tolist() == [None, "exact"]
    assert check("2026", table["answer"][0]) and check("two words", table["answer"][1])
    path.write_text("".join(json.dumps(row) + "\n" for row in [*rows, {"prompt": "Bad.", "constraints": {"regex": "("}}]))
    with pytest.warns(UserWarning, match="unusable answer 1"):
        table = load_tasks(path, max_bad_share=0.5)
    assert table["task_id"].tolist() == ["a", "b"]
    assert [(row["line"], row["kind"]) for row in table.attrs["rejects"]] == [(3, "unusable answer")]


def test_the_worker_lives_on_over_many_answers():
    assert obeys("a", regex="a")
    starts = WORKER.starts
    assert all(obeys("a", regex="a") for _ in range(20)) and WORKER.starts == starts
