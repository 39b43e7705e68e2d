"""Claims about reading task files; ids in comments name the field case that a test guards against."""

import gzip
import json
from pathlib import Path

import pandas as pd
import pytest

from lad_utils.tasks import load_tasks, normalise_prompt, overlap

DATA = Path(__file__).resolve().parents[1] / "../shared/data"
PROMPT = "How many clips did Natalia sell?"


@pytest.fixture
def write(tmp_path):
    def write(name, content):
        path = tmp_path / name
        lines = content if isinstance(content, (bytes, str)) else "\n".join(json.dumps(row) for row in content)
        path.write_bytes(lines if isinstance(lines, bytes) else lines.encode("utf-8"))
        return path

    return write


@pytest.mark.parametrize(
    "record",
    [
        {"question": PROMPT, "answer": "48 + 24 = 72\n#### 72"},
        {"problem": PROMPT, "answer": "72"},
        {"problem": PROMPT, "solution": "Hence \\boxed{72}."},
        {"prompt": PROMPT, "ground_truth": 72},
        {"prompt": PROMPT, "answer": "72"},
        {"messages": [{"role": "user", "content": PROMPT}, {"role": "assistant", "content": "#### 72"}]},
        {"prompt": [{"role": "user", "content": PROMPT}], "reward_model": {"ground_truth": "72", "style": "rule"}},
    ],
)
def test_every_schema_gives_the_same_prompt_and_answer(write, record):  # G06, G07
    for name, content in (("t.jsonl", json.dumps(record)), ("t.json", json.dumps([record]))):
        table = load_tasks(write(name, content))
        assert list(table.columns[:3]) == ["task_id", "prompt", "answer"]
        assert table.loc[0, ["prompt", "answer"]].tolist() == [PROMPT, "72"]


def test_nested_prompts_survive_parquet(tmp_path):  # G06
    row = {"prompt": [{"role": "user", "content": PROMPT}], "reward_model": {"ground_truth": "72"}, "ability": "math"}
    pd.DataFrame([row]).to_parquet(tmp_path / "t.parquet")
    assert load_tasks(tmp_path / "t.parquet")[["prompt", "answer", "ability"]].values.tolist() == [[PROMPT, "72", "math"]]


def test_a_byte_order_mark_leaves_the_first_key_clean(write):  # G01
    row = json.dumps({"question": PROMPT, "answer": "72"}).encode()
    assert load_tasks(write("t.jsonl", b"\xef\xbb\xbf" + row)).loc[0, "answer"] == "72"
    csv_table = load_tasks(write("t.csv", b"\xef\xbb\xbfquestion,answer\r\nq,016\r\n"))
    assert csv_table.columns.tolist() == ["task_id", "prompt", "answer"]


@pytest.mark.parametrize("compress", [lambda raw: raw, gzip.compress])
def test_crlf_and_blank_lines_are_no_rows(write, compress):  # G02
    first, second = (json.dumps({"question": f"q{i}", "answer": i}) for i in (1, 2))
    name = "t.jsonl" if compress(b"") == b"" else "t.jsonl.gz"
    table = load_tasks(write(name, compress(f"{first}\r\n\r\n   \r\n{second}\r\n".encode())))
    assert table["prompt"].tolist() == ["q1", "q2"]


def test_a_malformed_line_is_reported_by_its_number(write, tmp_path):  # G02
    path = write("t.jsonl", '{"question": "a", "answer": 1}\n\n{"question": \n{"question": "b", "answer": 2}\n')
    with pytest.warns(UserWarning, match=r"rejected 1 of 3 rows \(malformed JSON 1\)"):
        table = load_tasks(path, max_bad_share=0.5, rejects=tmp_path / "rejects.jsonl")
    assert [reject["line"] for reject in table.attrs["rejects"]] == [3]
    assert [json.loads(line) for line in (tmp_path / "rejects.jsonl").read_text().splitlines()] == table.attrs["rejects"]
    assert not list(tmp_path.glob(".*tmp"))


def test_a_line_separator_inside_a_string_does_not_split_the_line(write):
    path = write("t.jsonl", '{"question": "one\u2028two\u0085three", "answer": "5"}\n')
    assert load_tasks(path).loc[0, "prompt"] == "one\u2028two\u0085three"


def test_number_and_text_answers_are_equal_and_missing_ones_are_reported(write):  # G05
    rows = [
        {"question": "a", "answer": 5},
        {"question": "b", "answer": "5"},
        {"question": "c"},
        {"question": "d", "answer": None},
    ]
    with pytest.warns(UserWarning, match="rejected 2 of 4"):
        table = load_tasks(write("t.jsonl", rows), max_bad_share=0.5)
    assert table["answer"].tolist() == ["5", "5"]
    assert [reject["line"] for reject in table.attrs["rejects"]] == [3, 4]


def test_csv_fields_stay_strings(write):
    table = load_tasks(write("t.csv", 'question,answer,code\nq,016,007\n"a, ""b""\nc",5,NA\n'))
    assert table[["prompt", "answer", "code"]].values.tolist() == [["q", "016", "007"], ['a, "b"\nc', "5", "NA"]]


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        ({"question": "", "answer": "5"}, "prompt: found ''"),
        ({"question": None, "answer": "5"}, "prompt: found None"),
        ({"messages": [{"role": "user", "content": None}, {"role": "assistant", "content": "5"}]}, "prompt: found None"),  # G10
        ({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": None}]}, "answer: found None"),  # G10
        ({"messages": [{"role": "user", "content": "q"}]}, "messages: found no assistant turn"),
        ({"question": "q", "answer": "see figure"}, "answer: found 'see figure'"),  # A10
        ({"question": "q", "answer": float("nan")}, "answer: found nan"),
        ({"task_id": "good", "question": "q", "answer": "5"}, "task_id: found 'good' again"),
        ({"question": "half \ud800", "answer": "5"}, "prompt: found half a surrogate"),
        (["q", "5"], "malformed row: found list"),
    ],
)
def test_an_unusable_row_is_rejected_with_its_reason(write, record, reason):
    path = write("t.jsonl", [{"task_id": "good", "question": "x", "answer": "1"}, record])
    with pytest.warns(UserWarning, match="rejected 1 of 2 rows"):
        table = load_tasks(path, max_bad_share=0.5)
    assert table["task_id"].tolist() == ["good"]
    assert table.attrs["rejects"][0]["reason"].startswith(reason)


def test_too_many_bad_rows_end_in_one_clear_line(write, tmp_path):
    path = write("t.jsonl", [{"question": "x", "answer": "1"}, {"question": "y", "answer": "see figure"}])
    with pytest.raises(
        ValueError, match=r"t\.jsonl: found 1 bad rows of 2, expected at most 5%; first: line 2: answer"
    ) as error:
        load_tasks(path, rejects=tmp_path / "rejects.jsonl")
    assert "\n" not in str(error.value)
    assert (tmp_path / "rejects.jsonl").read_text().count("\n") == 1


@pytest.mark.parametrize(
    ("name", "content", "found"), [("t.jsonl", "", "no rows"), ("t.txt", "x", "ending '.txt'"), ("t.json", "[1", "bad")]
)
def test_a_file_without_tasks_is_refused(write, name, content, found):
    with pytest.raises(ValueError, match=found):
        load_tasks(write(name, content))


def test_repeated_prompts_are_kept_and_counted(write):  # G08
    rows = [{"question": f"prompt {i % 3}", "answer": i % 3} for i in range(300)]
    table = load_tasks(write("t.jsonl", rows))
    assert (len(table), table["prompt"].nunique(), table.attrs["duplicate_prompts"]) == (300, 3, 297)
    assert table["task_id"].is_unique


def test_other_columns_follow_the_three_fixed_ones(write):
    table = load_tasks(write("t.jsonl", [{"level": 3, "problem": "q", "answer": "5", "tags": ["a"], "solution": "\\boxed{5}"}]))
    assert table.columns.tolist() == ["task_id", "prompt", "answer", "level", "tags", "solution"]
    assert [str(table[name].dtype) for name in ("task_id", "prompt", "answer")] == ["str"] * 3


def test_overlap_ignores_case_spacing_and_punctuation_and_looks_inside_headers():  # G11
    question = "Natalia sold clips to 48 of her friends in April. How many?"
    header = f"Solve these.\nQ: {question}\nA: 48\n"
    assert normalise_prompt("Tom has 5, Apples!") == "tomhas5apples"
    assert overlap([question.upper().replace(" ", "  "), "something else", "???"], [question, "!"]) == [True, False, False]
    assert overlap([question, "Q: A?"], [header]) == [True, False]


def test_gsm8k_train_and_test_do_not_overlap():  # G11
    paths = [DATA / "gsm8k" / f"{split}.jsonl" for split in ("train", "test")]
    if not all(path.exists() for path in paths):
        pytest.skip("GSM8K is not on this machine")
    train, test = (load_tasks(path) for path in paths)
    assert (len(train), len(test)) == (7473, 1319)
    assert sum(overlap(test["prompt"], train["prompt"])) == sum(overlap(train["prompt"], test["prompt"])) == 0
    assert all(overlap(test["prompt"], test["prompt"].str.upper()))
