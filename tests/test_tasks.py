"""Claims about reading task files; ids in comments name the field case that a test guards against."""

import gzip
import json
import warnings
from decimal import Decimal
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from lad_utils.task_files import RowError
from lad_utils.task_schemas import task_row
from lad_utils.tasks import _window_index, ingestion_report, load_tasks, normalise_prompt, overlap
from lad_utils.verifier import gold_answer

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
        {"prompt": [{"role": "user", "content": PROMPT}], "solution": "Hence \\boxed{72}."},
        {"prompt": [{"role": "user", "content": PROMPT}], "ground_truth": 72.0},
        {"prompt": [{"role": "user", "content": [{"type": "text", "text": PROMPT}]}], "answer": 72},
        {"question": PROMPT, "prompt": " ", "answer": float("nan"), "solution": "#### 72"},
        {"problem": PROMPT, "reward_model.ground_truth": "72"},
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


def test_the_index_of_verl_stays_beside_the_row_and_is_no_task_id(tmp_path):  # G06, G08
    chat = [{"role": "user", "content": PROMPT}]
    row = {
        "prompt": chat,
        "reward_model": {"ground_truth": "72", "style": "rule"},
        "extra_info": {"index": 7, "split": "train"},
    }
    for path in (tmp_path / "t.parquet", tmp_path / "t.json"):
        frame = pd.DataFrame([row, row])  # shipped sets repeat their indices, so an index can't be the key
        frame.to_parquet(path) if path.suffix == ".parquet" else path.write_text(json.dumps([row, row]))
        with pytest.warns(UserWarning, match="repeated prompt 1"):
            table = load_tasks(path)
        assert table["task_id"].tolist() == ["t-1", "t-2"]
        assert table["extra_info"].tolist() == [row["extra_info"]] * 2 and table["reward_model"][0]["style"] == "rule"


SYSTEM, USER = {"role": "system", "content": "Be brief."}, {"role": "user", "content": PROMPT}
SHOT = [{"role": "user", "content": "1 + 1?"}, {"role": "assistant", "content": "#### 2"}]
GOLD = {"role": "assistant", "content": "#### 72"}


@pytest.mark.parametrize("turns", [[SYSTEM, USER], [*SHOT, USER], [SYSTEM, *SHOT, USER]])
def test_system_and_few_shot_turns_are_kept_in_messages(write, tmp_path, turns):
    records = [{"prompt": turns, "answer": "72"}, {"messages": turns, "answer": "72"}, {"messages": [*turns, GOLD]}]
    for record in records:
        pd.DataFrame([record]).to_parquet(tmp_path / "t.parquet")
        for path in (write("t.json", json.dumps([record])), tmp_path / "t.parquet"):
            table = load_tasks(path)
            assert table.columns.tolist() == ["task_id", "prompt", "answer", "messages"]
            assert table.loc[0, ["prompt", "answer", "messages"]].tolist() == [PROMPT, "72", turns]  # the gold is no part of it


def test_a_chat_of_one_user_turn_needs_no_messages_column(write):
    for record in ({"prompt": [USER], "answer": "72"}, {"messages": [USER, GOLD]}):
        assert load_tasks(write("t.jsonl", [record])).columns.tolist() == ["task_id", "prompt", "answer"]


def test_the_start_of_an_answer_stays_in_the_prompt_and_a_few_shot_answer_is_no_gold(write):
    start = {"role": "assistant", "content": "<think>"}
    table = load_tasks(write("t.jsonl", [{"prompt": [USER, start], "answer": "72"}]))
    assert table.loc[0, ["prompt", "messages"]].tolist() == [PROMPT, [USER, start]]
    with pytest.raises(ValueError, match="found no assistant turn after the last user turn"):
        load_tasks(write("t.jsonl", [{"messages": [*SHOT, USER]}]))


def test_a_chat_beside_the_prompt_is_kept_but_not_as_the_prompt(write):
    table = load_tasks(write("t.jsonl", [{"problem": PROMPT, "answer": "72", "messages": [SYSTEM, USER, GOLD]}]))
    assert table.columns.tolist() == ["task_id", "prompt", "answer", "source_messages"]
    assert table.loc[0, "source_messages"] == [SYSTEM, USER, GOLD]


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


@pytest.mark.parametrize(
    ("stated", "answer"),
    [
        (5, "5"),
        (5.0, "5"),
        ("5.0", "5.0"),
        ("016", "016"),
        (-3, "-3"),
        (2.5, "2.5"),
        ("...\n#### 18", "18"),
        (10**20, "1" + "0" * 20),
    ],
)
def test_whole_floats_are_whole_golds_and_texts_stay_texts(write, stated, answer):  # G05, G07
    assert load_tasks(write("t.jsonl", [{"question": "q", "answer": stated}])).loc[0, "answer"] == answer


def test_numbers_of_parquet_are_golds_whatever_their_type(tmp_path):  # G05
    types = {"float64": [5.0, None], "int32": [5, 6], "Int64": [5, None], "float32": [5.0, float("nan")], "str": ["5", None]}
    columns = {dtype: pd.array(values, dtype=dtype) for dtype, values in types.items()}
    columns["decimal"] = [Decimal("5.00"), None]
    for name, column in columns.items():
        pd.DataFrame({"question": ["a", "b"], "answer": column}).to_parquet(tmp_path / "t.parquet")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            table = load_tasks(tmp_path / "t.parquet", max_bad_share=0.5)
        assert table["answer"].tolist()[0] == ("5.00" if name == "decimal" else "5"), name
        assert [reject["kind"] for reject in table.attrs["rejects"]] == ["missing answer"] * (name != "int32"), name


@given(
    st.lists(st.sampled_from(["#", "####", "#### ", "18", " ", "\n", "\\boxed{5}", "the answer is ", "-", "$", "x", "."])).map(
        "".join
    )
)
def test_the_answer_of_a_row_is_the_gold_answer_of_the_verifier(text):  # G07
    try:
        found = task_row({"question": "q", "answer": text}, "t-1")["answer"]
    except RowError:
        found = None
    assert found == gold_answer(text)


def test_a_nan_beside_the_gold_is_none(write):
    table = load_tasks(write("t.jsonl", '{"question": "q", "answer": 1, "level": NaN, "x": 1.5}'))
    assert table.loc[0, ["level", "x"]].tolist() == [None, 1.5]


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
        ({"prompt": [{"role": "user", "content": None}], "answer": "5"}, "prompt: found None"),  # G10
        (
            {"prompt": [{"role": "system", "content": None}, USER], "answer": "5"},
            "messages: found the turn {'role': 'sys",
        ),  # G10
        ({"prompt": [{"role": "user", "content": [{"type": "image"}]}], "answer": "5"}, "prompt: found [{'type': 'image'}]"),
        ({"prompt": [5, USER], "answer": "5"}, "messages: found the turn 5"),
        ({"prompt": [SYSTEM], "answer": "5"}, "messages: found no user turn"),
        ({"prompt": [], "answer": "5"}, "messages: found no user turn in []"),
        ({"query": "q", "answer": "5"}, "prompt: found None among the fields ['query', 'answer']"),
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
    with pytest.warns(UserWarning, match=r"t\.jsonl: kept rows to look at \(repeated prompt 297\)"):
        table = load_tasks(write("t.jsonl", rows))
    assert (len(table), table["prompt"].nunique(), table.attrs["duplicate_prompts"]) == (300, 3, 297)
    assert table["task_id"].is_unique


def test_chats_that_differ_before_the_last_turn_are_no_repeated_prompts(write):
    rows = [{"prompt": turns, "answer": "72"} for turns in ([USER], [SYSTEM, USER], [*SHOT, USER], [SYSTEM, USER])]
    with pytest.warns(UserWarning, match="repeated prompt 1"):
        assert load_tasks(write("t.jsonl", rows)).attrs["duplicate_prompts"] == 1


def test_the_report_counts_every_kind_and_names_its_first_lines(write, tmp_path):  # G05, G08, G10, G11
    question = "Natalia sold clips to 48 of her friends in April. How many?"
    rows = [
        {"question": question, "answer": 48},  # 1: in the evaluation set
        {"question": None, "answer": 1},
        {"question": "no gold"},
        {"question": "bad gold", "answer": "see figure"},
        {"task_id": "t-1", "question": "taken id", "answer": 1},
        {"question": "one two three four five six", "answer": 1},  # 6: longer than the context
        *({"question": "again", "answer": 1} for _ in range(8)),  # 7 to 14
        {"prompt": [SYSTEM, {"role": "user", "content": question}], "answer": 48},  # 15: the chat holds it, too
    ]
    with pytest.warns(
        UserWarning, match=r"rejected 5 of 15 rows .*; kept rows to look at \(repeated prompt 7, prompt in the ev"
    ):
        table = load_tasks(
            write("t.jsonl", rows),
            max_bad_share=0.5,
            count_tokens=lambda text: len(text.replace("clips", "").split()) if "Natalia" not in text else 0,
            max_prompt_tokens=5,
            eval_prompts=[question.upper()],
        )
    report = ingestion_report(table).set_index("kind")
    assert report.columns.tolist() == ["rows", "outcome", "first_lines"]
    assert report.to_dict("index") == {
        kind: {"rows": rows, "outcome": outcome, "first_lines": lines}
        for kind, rows, outcome, lines in [
            ("missing prompt", 1, "rejected", "2"),
            ("missing answer", 1, "rejected", "3"),
            ("unusable answer", 1, "rejected", "4"),
            ("repeated task_id", 1, "rejected", "5"),
            ("long prompt", 1, "rejected", "6"),
            ("repeated prompt", 7, "kept", "8, 9, 10, 11, 12"),
            ("prompt in the evaluation set", 2, "kept", "1, 15"),
            ("chat kept in messages", 1, "kept", "15"),
        ]
    }
    assert table["overlaps_eval"].tolist() == [True, *[False] * 8, True]
    assert json.loads(json.dumps(table.attrs, allow_nan=False)) == table.attrs
    table.to_parquet(tmp_path / "table.parquet")
    assert ingestion_report(pd.read_parquet(tmp_path / "table.parquet")).equals(ingestion_report(table))


def test_an_evaluation_question_in_a_few_shot_turn_is_flagged(write):  # G11
    leaked = {"role": "user", "content": "Natalia sold clips to 48 of her friends in April. How many?"}
    rows = [{"prompt": turns, "answer": "72"} for turns in ([leaked, SHOT[1], USER], [*SHOT, USER])]
    with pytest.warns(UserWarning, match="prompt in the evaluation set 1"):
        table = load_tasks(write("t.jsonl", rows), eval_prompts=pd.Series([leaked["content"].upper()]))
    assert table["overlaps_eval"].tolist() == [True, False]


def test_a_clean_set_has_zeros_in_its_report_and_no_warning(write):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        table = load_tasks(write("t.jsonl", [{"prompt": [SYSTEM, USER], "answer": 72}]))
    assert dict(zip(ingestion_report(table)["kind"], ingestion_report(table)["rows"])) == {
        "missing prompt": 0,
        "missing answer": 0,
        "unusable answer": 0,
        "repeated task_id": 0,
        "repeated prompt": 0,
        "chat kept in messages": 1,
    }
    with pytest.raises(ValueError, match="expected a table as `load_tasks` returns it"):
        ingestion_report(pd.DataFrame({"task_id": ["a"]}))


def test_a_long_prompt_is_rejected_with_its_length_and_the_limit_and_all_turns_count(write):
    rows = [
        {"question": "one two three", "answer": 1},
        {"prompt": [SYSTEM, {"role": "user", "content": "three four"}], "answer": 1},
    ]
    options = {"count_tokens": lambda text: len(text.split()), "max_bad_share": 0.5}
    with pytest.warns(UserWarning, match="long prompt 1"):
        table = load_tasks(write("t.jsonl", rows), max_prompt_tokens=3, **options)
    assert [(r["line"], r["reason"]) for r in table.attrs["rejects"]] == [
        (2, "prompt: found 4 tokens, expected at most 3 (max_prompt_tokens)")
    ]
    assert len(load_tasks(write("t.jsonl", rows), max_prompt_tokens=4, **options)) == 2
    with pytest.raises(ValueError, match="expected both or neither"):
        load_tasks(write("t.jsonl", rows), max_prompt_tokens=4)


def test_the_side_file_lists_every_rejected_row_where_attrs_hold_the_first_thousand(write, tmp_path):
    rows = [{"question": f"q{i}", "answer": 1 if i % 2 else None} for i in range(2400)]
    with pytest.warns(UserWarning, match="rejected 1200 of 2400"):
        table = load_tasks(write("t.jsonl", rows), max_bad_share=0.5, rejects=tmp_path / "rejects.jsonl")
    listed = [json.loads(line) for line in (tmp_path / "rejects.jsonl").read_text().splitlines()]
    assert [reject["line"] for reject in listed] == list(range(1, 2401, 2))
    assert table.attrs["rejects"] == listed[:1000]
    assert ingestion_report(table).set_index("kind").loc["missing answer", "rows"] == 1200


def test_other_columns_follow_the_three_fixed_ones(write):
    table = load_tasks(write("t.jsonl", [{"level": 3, "problem": "q", "answer": "5", "tags": ["a"], "solution": "\\boxed{5}"}]))
    assert table.columns.tolist() == ["task_id", "prompt", "answer", "level", "tags", "solution"]
    assert [str(table[name].dtype) for name in ("task_id", "prompt", "answer")] == ["str"] * 3


def test_overlap_ignores_case_spacing_and_punctuation_and_looks_inside_headers():  # G11
    question = "Natalia sold clips to 48 of her friends in April. How many?"
    header = f"Solve these.\nQ: {question}\nA: 48\n"
    assert normalise_prompt("Tom has 5, Apples!") == "tomhas5apples"
    assert normalise_prompt("Cafe\u0301 ５") == normalise_prompt("café 5") == "café5"  # composed or not, wide or not
    assert overlap([question.upper().replace(" ", "  "), "something else", "???"], [question, "!"]) == [True, False, False]
    assert overlap([question, "Q: A?"], [header]) == [True, False]


def test_overlap_is_seen_in_both_directions():  # G11
    question = "Natalia sold clips to 48 of her friends in April. How many?"
    assert overlap([f"Think step by step. {question} Answer:"], [question]) == [True]
    assert overlap([question], [f"Q: {question}\nA: 48"]) == [True]
    assert overlap(["Q: How many?"], ["How many?"]) == overlap(["How many?"], ["Q: How many?"]) == [False]  # too short to tell
    with pytest.raises(ValueError, match="found the prompt None, expected text"):
        overlap([question], [None])
    with pytest.raises(ValueError, match="expected a list of prompts"):
        overlap([question], question)


def naive_overlap(prompts, references):
    def same(one, other):
        contained = min(len(one), len(other)) >= 40 and (one in other or other in one)
        return bool(one) and (one == other or contained)

    references = [normalise_prompt(text) for text in references]
    return [any(same(normalise_prompt(prompt), text) for text in references) for prompt in prompts]


# Few long pieces, so that headers are shared, windows repeat, and containment on either side is common.
PIECES = st.sampled_from(["a" * 39, "a" * 20, "Header " * 6, "b c" * 13, "d" * 40, "e", "E!", " ", "ab" * 20, "é" * 21])
PROMPTS = st.lists(st.lists(PIECES, max_size=5).map("".join), max_size=8)


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(PROMPTS, PROMPTS)
@example([f"e{'a' * n}" for n in range(41, 80)], ["a" * n for n in range(41, 80)])  # one window for all
def test_overlap_equals_its_naive_definition(prompts, references):  # G11
    assert overlap(prompts, references) == naive_overlap(prompts, references)


def test_a_header_shared_by_all_prompts_is_no_overlap():  # G11
    header = "Solve the problem step by step and put the final answer in a box at the very end of the reply. "
    prompts = [f"{header} How much is {i} times {i}, friend number {i}? {header}" for i in range(300)]
    references = [f"{header} How much is {i} plus {i}, friend number {i}? {header}" for i in range(300)]
    assert not any(overlap(prompts, references))
    assert overlap(prompts, [*references, prompts[7].lower()]) == [i == 7 for i in range(300)]
    # Were the header's window that of many prompts, each look-up that finds it would be followed by as many comparisons.
    assert len(_window_index({normalise_prompt(text) for text in prompts})) == 300


def test_gsm8k_train_and_test_do_not_overlap():  # G11
    paths = [DATA / "gsm8k" / f"{split}.jsonl" for split in ("train", "test")]
    if not all(path.exists() for path in paths):
        pytest.skip("GSM8K is not on this machine")
    train, test = (load_tasks(path) for path in paths)
    assert (len(train), len(test)) == (7473, 1319)
    assert train.attrs["rejects"] == test.attrs["rejects"] == []
    assert sum(overlap(test["prompt"], train["prompt"])) == sum(overlap(train["prompt"], test["prompt"])) == 0
    assert all(overlap(test["prompt"], test["prompt"].str.upper()))
