"""Claims about task files as bytes: what is read, what damaged ones end in, and what `write_like` gives back."""

import csv
import gzip
import io
import json
import pickle
import warnings

import datasets
import pandas as pd
import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lad_utils.task_files import read_records
from lad_utils.task_sources import Source, parse_source, stem
from lad_utils.tasks import load_tasks, write_like

ROWS = [
    {"question": f"How many é clips, {i}?", "answer": f"{i} + 1 = {i + 1}\n#### {i + 1}", "level": i, "tags": ["a", None]}
    for i in range(10)
]
TEXT = [{"question": row["question"], "answer": row["answer"], "code": f"0{i}"} for i, row in enumerate(ROWS)]


def zipped(content):
    """Gzip without the time of day, which would give the same test another name in each process."""
    return gzip.compress(content, mtime=0)


def jsonl(rows, end="\n"):
    return "".join(json.dumps(row, ensure_ascii=False) + end for row in rows).encode()


def csv_bytes(rows):
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, rows[0])
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode()


def parquet_bytes(rows):
    buffer = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.Table.from_pandas(pd.DataFrame(rows)), buffer, row_group_size=4, compression="zstd")
    return buffer.getvalue()


FILES = {
    "t.jsonl": jsonl(ROWS),
    "crlf.jsonl": b"\xef\xbb\xbf" + jsonl(ROWS[:5], "\r\n") + b"\r\n  \n" + jsonl(ROWS[5:], "\r\n").strip(),
    "t.jsonl.gz": zipped(jsonl(ROWS)),
    "t.ndjson": jsonl(ROWS),
    "lines.json": jsonl(ROWS),
    "t.json": json.dumps(ROWS, indent=1, ensure_ascii=False).encode(),
    "t.json.gz": zipped(json.dumps(ROWS).encode()),
    "t.csv": csv_bytes(TEXT),
    "bom.csv": b"\xef\xbb\xbf" + csv_bytes(TEXT).replace(b"\r\n", b"\n"),
    "t.csv.gz": zipped(csv_bytes(TEXT)),
    "t.parquet": parquet_bytes(ROWS),
    "t.parquet.gz": zipped(parquet_bytes(ROWS)),
}


@pytest.fixture
def write(tmp_path):
    def write(name, content):
        (tmp_path / name).write_bytes(content)
        return tmp_path / name

    return write


@pytest.fixture
def refused():
    """The one line with which a source is refused; it is a ValueError of our own and begins with the source."""

    def refused(path, **options):
        with pytest.raises(ValueError) as error:
            load_tasks(path, **options)
        assert type(error.value) is ValueError and error.value.__cause__ is None
        assert str(error.value).startswith(str(path)) and "\n" not in str(error.value)
        return str(error.value).removeprefix(str(path))

    return refused


@pytest.mark.parametrize("name", FILES)
def test_every_format_gives_the_same_tasks(write, name):  # G01, G02
    table = load_tasks(write(name, FILES[name]))
    assert table["prompt"].tolist() == [row["question"] for row in ROWS]
    assert table["answer"].tolist() == [str(i + 1) for i in range(10)]


@pytest.mark.parametrize("name", FILES)
def test_writing_all_rows_and_loading_them_gives_the_table_again(write, tmp_path, name):
    path = write(name, FILES[name])
    table = load_tasks(path)
    copy = write_like(table, path, tmp_path / "out" / name)
    if name != "crlf.jsonl":  # its blank lines are no rows, so the lines after them have other numbers
        pd.testing.assert_frame_equal(load_tasks(copy), table)
    pd.testing.assert_frame_equal(load_tasks(copy).drop(columns="task_id"), table.drop(columns="task_id"))
    assert (copy.read_bytes()[:2] == b"\x1f\x8b") == name.endswith(".gz")
    assert [file.name for file in (tmp_path / "out").iterdir()] == [name]


@pytest.mark.parametrize("name", FILES)
def test_a_filtered_export_holds_the_kept_rows_in_the_order_of_the_source(write, tmp_path, name):
    path = write(name, FILES[name])
    kept = load_tasks(path).iloc[[7, 2, 3]]
    copy = load_tasks(write_like(kept, path, tmp_path / "out" / name))
    expected = kept.sort_index().reset_index(drop=True).drop(columns="task_id")
    pd.testing.assert_frame_equal(copy.drop(columns="task_id"), expected)


def test_gzip_stays_gzip_whatever_the_name_and_a_gz_name_makes_it(write, tmp_path):
    for content, name in ((FILES["t.jsonl.gz"], "out.jsonl"), (FILES["t.jsonl"], "out.jsonl.gz")):
        path = write("t.jsonl", content)
        copy = write_like(load_tasks(path), path, tmp_path / name)
        assert gzip.decompress(copy.read_bytes()) == FILES["t.jsonl"]


@pytest.mark.parametrize("name", ["t.jsonl", "crlf.jsonl", "t.csv", "bom.csv", "t.json"])
def test_exported_text_rows_keep_their_bytes(write, tmp_path, name):
    odd = b'{ "answer":1.50, "question" : "\\u00e9 \xe2\x80\xa8", "n":1e2}'
    content = FILES[name] if "csv" in name else FILES[name].replace(jsonl(ROWS[2:3]).strip(), odd)
    path = write(name, content)
    copy = write_like(load_tasks(path), path, tmp_path / "out" / name).read_bytes()
    if name == "t.json":
        assert copy[len("[\n") : -len("\n]\n")].split(b",\n{") == content[len("[\n ") : -len("\n]")].split(b",\n {")
    else:
        assert [line for line in content.split(b"\n") if line.strip()] == [line for line in copy.split(b"\n") if line]


def test_exported_parquet_keeps_schema_metadata_row_groups_and_compression(write, tmp_path):
    path = write("t.parquet", FILES["t.parquet"])
    copy = write_like(load_tasks(path).iloc[[1, 2, 9]], path, tmp_path / "o.parquet")
    before, after = pyarrow.parquet.ParquetFile(path), pyarrow.parquet.ParquetFile(copy)
    assert after.schema_arrow.equals(before.schema_arrow, check_metadata=True)
    assert [after.metadata.row_group(i).num_rows for i in range(after.num_row_groups)] == [2, 0, 1]
    assert {after.metadata.row_group(0).column(i).compression for i in range(3)} == {"ZSTD"}
    assert pd.read_parquet(copy)["level"].tolist() == [1, 2, 9]


def test_a_rejected_row_is_not_exported_and_the_first_usable_row_with_an_id_is(write, tmp_path):
    rows = [{"task_id": "a", "question": "first", "answer": "no idea"}, {"task_id": "a", "question": "second", "answer": "2"}]
    path = write("t.jsonl", jsonl([*rows, {"task_id": "a", "question": "third", "answer": "3"}]))
    with pytest.warns(UserWarning, match="rejected 2 of 3"):
        table = load_tasks(path, max_bad_share=0.9)
    assert write_like(table, path, tmp_path / "o.jsonl").read_bytes() == jsonl(rows[1:])


def test_an_export_refuses_what_is_no_filter_of_the_source(write, tmp_path):
    path = write("t.jsonl", FILES["t.jsonl"])
    table = load_tasks(path)
    other = table.assign(task_id="elsewhere-" + table["task_id"])
    for wrong, found in [
        (table.iloc[:0], "found no rows"),
        (table.iloc[[1, 1]], "found 't-2' twice"),
        (other, r"found no task 'elsewhere-t-1' \(10 missing\)"),
        (table.assign(answer="7"), r"found '7' as answer of 't-1' in the table, expected '1' as in line 1"),
    ]:
        with pytest.raises(ValueError, match=found):
            write_like(wrong, path, tmp_path / "o.jsonl")
    with pytest.raises(ValueError, match=r"found the ending '.csv', expected .jsonl"):
        write_like(table, path, tmp_path / "o.csv")
    assert not list(tmp_path.glob("*o.*"))
    write_like(table[["task_id"]].head(1), path, tmp_path / "o.jsonl")  # a table of scores by task_id is enough


def test_a_failed_export_leaves_the_old_file(write, tmp_path, monkeypatch):
    path, target = write("t.jsonl", FILES["t.jsonl"]), write("o.jsonl", b"old")
    table = load_tasks(path)
    monkeypatch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError("disk")))
    with pytest.raises(OSError, match="disk"):
        write_like(table, path, target)
    assert target.read_bytes() == b"old" and {file.name for file in tmp_path.iterdir()} == {"t.jsonl", "o.jsonl"}


# --- folders and the hub


def test_a_saved_dataset_loads_and_is_exported_as_one(tmp_path):
    dataset = datasets.Dataset.from_list(ROWS).select([3, 1, 2])  # an indices mapping, too
    dataset.save_to_disk(tmp_path / "saved")
    table = load_tasks(tmp_path / "saved")
    assert table["task_id"].tolist() == ["saved-1", "saved-2", "saved-3"]
    assert table["prompt"].tolist() == [ROWS[i]["question"] for i in (3, 1, 2)]
    copy = write_like(table.iloc[[2, 0]], tmp_path / "saved", tmp_path / "out" / "saved")
    assert datasets.load_from_disk(copy).to_list() == [ROWS[3], ROWS[2]]
    assert datasets.load_from_disk(copy).features == dataset.features
    pd.testing.assert_frame_equal(load_tasks(write_like(table, tmp_path / "saved", tmp_path / "all" / "saved")), table)
    assert [file.name for file in (tmp_path / "out").iterdir()] == ["saved"]
    with pytest.raises(ValueError, match="found it there already"):
        write_like(table, tmp_path / "saved", copy)


def test_a_split_of_a_saved_dict_is_named_after_a_colon(tmp_path, refused):
    splits = {"train": datasets.Dataset.from_list(ROWS[:6]), "test": datasets.Dataset.from_list(ROWS[6:])}
    datasets.DatasetDict(splits).save_to_disk(tmp_path / "both")
    table = load_tasks(f"{tmp_path}/both:test")
    assert table["task_id"].tolist() == [f"both-test-{i}" for i in range(1, 5)]
    assert "found the splits train, test, expected one of them, as in" in refused(tmp_path / "both")
    assert "found the splits train, test" in refused(f"{tmp_path}/both:validation")
    copy = write_like(table.head(2), f"{tmp_path}/both:test", tmp_path / "kept")
    assert {name: split.to_list() for name, split in datasets.load_from_disk(copy).items()} == {"test": ROWS[6:8]}
    assert load_tasks(copy)["prompt"].tolist() == table["prompt"].tolist()[:2]


def test_reading_a_saved_dataset_unpickles_nothing(tmp_path, monkeypatch):
    datasets.Dataset.from_list(ROWS).save_to_disk(tmp_path / "saved")
    (tmp_path / "saved" / "dataset.pkl").write_bytes(pickle.dumps(ROWS))
    for name in ("load", "loads", "Unpickler"):
        monkeypatch.setattr(pickle, name, lambda *_, **__: pytest.fail("a pickle was loaded"))
    assert len(load_tasks(tmp_path / "saved")) == 10


def test_a_folder_that_is_no_dataset_is_refused(tmp_path, refused, write):
    (tmp_path / "empty").mkdir()
    assert "could not be loaded" in refused(tmp_path / "empty")
    datasets.Dataset.from_list(ROWS).save_to_disk(tmp_path / "cut")
    assert "found a dataset without splits, expected" in refused(f"{tmp_path}/cut:train")
    arrow = next((tmp_path / "cut").glob("*.arrow"))
    arrow.write_bytes(arrow.read_bytes()[:100])
    assert "could not be loaded" in refused(tmp_path / "cut")


@pytest.mark.parametrize(
    ("text", "expected", "prefix"),
    [
        ("openai/gsm8k:main:train", Source("hub", "openai/gsm8k", "main", "train"), "gsm8k-train"),
        ("openai/gsm8k@e53f04:main:train", Source("hub", "openai/gsm8k", "main", "train", "e53f04"), "gsm8k-train"),
        ("a-b/c_d.v2:test", Source("hub", "a-b/c_d.v2", None, "test"), "c_d.v2-test"),
        ("a/b@refs/pr/1", Source("hub", "a/b", None, None, "refs/pr/1"), "b"),
        ("a/b", Source("hub", "a/b"), "b"),
    ],
)
def test_a_hub_name_may_have_a_revision_a_config_and_a_split(text, expected, prefix):
    assert parse_source(text) == expected
    assert (str(expected), stem(expected)) == (text, prefix)


@pytest.mark.parametrize(
    "name", ["nope.jsonl", "data/nope.jsonl.gz", "./a/b", "/a/b", "gsm8k", "a/b:c:d:e", "", "a\0b", "a/b c"]
)
def test_what_is_neither_a_path_nor_a_hub_name_is_not_found(name):
    with pytest.raises(FileNotFoundError, match=r"no such task file, expected a \.jsonl") as error:
        load_tasks(name)
    assert "\n" not in str(error.value)


def test_a_path_that_exists_is_never_taken_for_a_hub_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "owner" / "name").mkdir(parents=True)
    assert parse_source("owner/name").kind == parse_source("owner/name:train").kind == "folder"
    (tmp_path / "owner" / "a:b.jsonl").write_bytes(FILES["t.jsonl"])
    assert parse_source("owner/a:b.jsonl") == Source("json", "owner/a:b.jsonl")


def test_a_hub_dataset_is_loaded_as_named_and_exported_as_parquet(tmp_path, monkeypatch):
    calls = []

    def load_dataset(*args, **options):
        calls.append((args, options))
        return datasets.Dataset.from_list(ROWS)

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    table = load_tasks("openai/gsm8k@abc:main:train")
    assert calls == [(("openai/gsm8k", "main"), {"split": "train", "revision": "abc"})]
    assert table["task_id"].tolist()[:2] == ["gsm8k-train-1", "gsm8k-train-2"]
    copy = write_like(table, "openai/gsm8k@abc:main:train", tmp_path / "gsm8k-train.parquet")
    pd.testing.assert_frame_equal(load_tasks(copy), table)
    with pytest.raises(ValueError, match=r"expected \.parquet, the format of openai/gsm8k@abc:main:train"):
        write_like(table, "openai/gsm8k@abc:main:train", tmp_path / "o.jsonl")


def test_a_hub_dataset_without_a_named_split_must_have_one_only(monkeypatch, refused):
    splits = datasets.DatasetDict({name: datasets.Dataset.from_list(ROWS) for name in ("train", "test")})
    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: splits)
    assert refused("openai/gsm8k").endswith("found the splits train, test, expected one of them, as in `openai/gsm8k:train`")
    del splits["test"]
    assert len(load_tasks("openai/gsm8k")) == 10


def test_an_unreachable_hub_ends_in_one_line(monkeypatch, refused):
    def load_dataset(*_, **__):
        raise ConnectionError("no\nroute")

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    assert refused("openai/gsm8k:main:train").startswith(": could not be loaded (ConnectionError: no route), expected a")


# --- hostile input


GOOD = [json.dumps({"question": f"q{i}", "answer": i}).encode() for i in range(4)]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"question": "q", "answer": ', "malformed JSON: found JSONDecodeError"),
        (b'{"question": "caf\xe9", "answer": 1}', "malformed JSON: found UnicodeDecodeError"),
        (b'{"question": "q", "answer": 1, "answer": 2}', "malformed JSON: found the keys ['answer'] more than once"),
        (b'{"question": "q", "answer": {"a": 1, "a": 1}}', "malformed JSON: found the keys ['a'] more than once"),
        (b'{"question": "q", "answer": 1' + b"0" * 5000 + b"}", "malformed JSON: found an integer of 5001 digits"),
        (b'{"question": "q", "answer": 1' + b"0" * 3000 + b"}", "answer: found 1000"),
        (b'{"question": "q", "answer": NaN}', "answer: found nan"),
        (b'{"question": "q", "answer": -Infinity}', "answer: found -inf"),
        (b'{"question": "q", "answer": 1e999}', "answer: found inf"),
        (b'{"question": "q", "answer": ' + b"[" * 100_000, "malformed JSON: found RecursionError"),
        (
            b'{"question": "q", "answer": 1, "x": ' + b"[" * 51 + b"]" * 51 + b"}",
            "x: found more than 50 nested levels in [[[",
        ),
        (b'{"question": "q", "answer": 1, "x": "\\ud800"}', "x: found half a surrogate pair"),
        (b'{"question": "q", "answer": 1, "\\udc00": 1}', "'\\udc00': found half a surrogate pair"),
        (b'{"question": "q", "answer": true}', "answer: found True"),
        (b'{"question": "q", "answer": {"a": 1}}', "answer: found {'a': 1}"),
        (b'{"question": {"a": 1}, "answer": 1}', "prompt: found {'a': 1}"),
        (b'{"question": "q", "answer": 1, "task_id": [1]}', "task_id: found [1]"),
        (b'{"question": "q", "answer": 1} {}', "malformed JSON: found more text after it, ' {}'"),
        (b"null", "malformed row: found NoneType None"),
        (b"[]", "malformed row: found list []"),
        (b"\x00", "malformed JSON"),
    ],
)
def test_one_hostile_line_is_rejected_by_number_and_the_others_live(write, line, reason):
    path = write("t.jsonl", b"\n".join([*GOOD[:2], line, *GOOD[2:]]))
    with pytest.warns(UserWarning, match="rejected 1 of 5 rows"):
        table = load_tasks(path, max_bad_share=0.2)
    (reject,) = table.attrs["rejects"]
    assert reject["line"] == 3 and reject["reason"].startswith(reason)
    assert table["prompt"].tolist() == ["q0", "q1", "q2", "q3"]


def test_a_hostile_element_of_an_array_is_rejected_where_its_end_is_known(write, refused):
    bad = [b'{"question": "caf\xe9", "answer": 1}', b'{"question": "q", "answer": 1, "answer": 2}', b'"q"']
    path = write("t.json", b"[" + b" ,\n".join([GOOD[0], *bad, GOOD[1]]) + b" ]\n")
    with pytest.warns(UserWarning, match=r"rejected 3 of 5 rows \(malformed JSON 2, malformed row 1\)"):
        table = load_tasks(path, max_bad_share=0.6)
    assert [reject["line"] for reject in table.attrs["rejects"]] == [2, 3, 4]
    for rest in (b"", b",", b",]", b", {", b"]]", b"] x", b", " + b"[" * 100_000):
        assert "JSON array" in refused(write("t.json", b"[" + b",".join(GOOD) + rest))


def test_csv_rows_are_numbered_by_their_first_line_and_bad_ones_rejected(write):
    content = b'question,answer\n"a\nb",1\nc\xff,2\n\nd,3,4\n"e"x,5\nf\n"g, ""h""",6\n'
    with pytest.warns(UserWarning, match=r"rejected 4 of 6 rows \(malformed CSV 4\)"):
        table = load_tasks(write("t.csv", content), max_bad_share=0.9)
    assert table[["task_id", "prompt"]].values.tolist() == [["t-2", "a\nb"], ["t-9", 'g, "h"']]
    reasons = {reject["line"]: reject["reason"].split("found ")[1] for reject in table.attrs["rejects"]}
    assert list(reasons) == [4, 6, 7, 8]
    assert reasons[4].startswith("UnicodeDecodeError") and reasons[6].startswith("3 fields, expected 2")


def test_a_quote_that_never_closes_would_swallow_the_file_so_it_is_refused(write, refused):
    content = "question,answer\n" + "".join(f"q{i},{i}\n" for i in range(100)) + '"open,1\n' + "q,1\n" * 5
    assert refused(write("t.csv", content.encode())).startswith(": line 102: found a quoted field that never ends")


@pytest.mark.parametrize("header", [b"question,answer,answer\n", b"question,answer,\xff\n"])
def test_a_csv_header_must_name_its_columns(write, refused, header):
    assert "found the CSV header" in refused(write("t.csv", header + b"q,1,2\n"))


def test_one_unreadable_value_of_parquet_rejects_its_row_only(write, monkeypatch):
    buffers = pyarrow.array([f"q{i}" for i in range(10)]).buffers()
    broken = pyarrow.py_buffer(buffers[2].to_pybytes().replace(b"q4", b"\xff4"))
    prompts = pyarrow.StringArray.from_buffers(10, buffers[1], broken)
    table, buffer = pyarrow.table({"question": prompts, "answer": list(range(10))}), io.BytesIO()
    pyarrow.parquet.write_table(table, buffer)
    for batch in (3, 4096):
        monkeypatch.setattr("lad_utils.task_files.BATCH", batch)
        with pytest.warns(UserWarning, match=r"rejected 1 of 10 rows \(malformed row 1\)"):
            loaded = load_tasks(write("t.parquet", buffer.getvalue()), max_bad_share=0.1)
        assert loaded["answer"].tolist() == [str(i) for i in range(10) if i != 4]
        assert loaded.attrs["rejects"][0]["line"] == 5


def test_parquet_is_turned_into_objects_by_batches(write, monkeypatch):
    sizes, batches = [], pyarrow.parquet.ParquetFile.iter_batches

    def watched(self, *args, **options):
        for batch in batches(self, *args, **options):
            sizes.append(batch.num_rows)
            yield batch

    monkeypatch.setattr("lad_utils.task_files.BATCH", 3)
    monkeypatch.setattr(pyarrow.parquet.ParquetFile, "iter_batches", watched)
    records = list(read_records(parse_source(write("t.parquet", FILES["t.parquet"]))))
    assert [line for line, _ in records] == list(range(1, 11)) and [record["level"] for _, record in records] == list(range(10))
    assert max(sizes) == 3 and sum(sizes) == 10


@pytest.mark.parametrize(
    ("name", "content", "found"),
    [
        ("t.jsonl", b"", "found no rows"),
        ("t.json", b"[]", "found no rows"),
        ("t.csv", b"question,answer\n", "found no rows"),
        ("t.parquet", b"", "found b'', expected a Parquet file"),
        ("t.parquet", FILES["t.parquet"][:-20], "found damaged bytes"),
        ("t.parquet", b"PAR1" + b"x" * 50 + b"PAR1", "found damaged bytes"),
        ("t.parquet", FILES["t.jsonl"], "expected a Parquet file"),
        ("t.jsonl", FILES["t.parquet"], "found a Parquet file, expected UTF-8 text"),
        ("t.jsonl", "x".encode("utf-16"), "found UTF-16 text"),
        ("t.csv", "question,answer\nq,1\n".encode("utf-16"), "found UTF-16 text"),
        ("t.jsonl.gz", FILES["t.jsonl.gz"][:-30], "found damaged bytes (EOFError"),
        ("t.jsonl.gz", FILES["t.jsonl.gz"][:20] + b"\xff" * 30, "found damaged bytes"),
        ("t.jsonl.gz", FILES["t.jsonl.gz"] + b"rubbish", "found damaged bytes (BadGzipFile"),
        ("t.txt", b"x", "found the ending '.txt'"),
        ("t", b"x", "found the ending ''"),
        ("t.jsonl.zst", b"x", "found the ending '.zst'"),
    ],
)
def test_a_file_damaged_as_a_whole_ends_in_one_line(write, refused, name, content, found):
    assert found in refused(write(name, content))


def test_a_gzip_bomb_is_stopped_at_the_limit(write, refused):
    path = write("t.jsonl.gz", zipped(b" " * 2**24 + FILES["t.jsonl"]))
    assert "expected at most 1048576 bytes in it (max_unpacked_bytes)" in refused(path, max_unpacked_bytes=2**20)
    assert len(load_tasks(path)) == 10
    exact = len(FILES["t.jsonl"])
    assert len(load_tasks(write("t.jsonl.gz", FILES["t.jsonl.gz"]), max_unpacked_bytes=exact)) == 10
    assert "expected at most" in refused(path.with_name("t.jsonl.gz"), max_unpacked_bytes=exact - 1)


def test_a_field_for_every_row_is_refused_before_it_fills_the_memory(write, refused):
    rows = [{"question": "q", "answer": 1, f"key{i}": 1} for i in range(1001)]
    assert "found 1004 different fields, expected at most 1000" in refused(write("t.jsonl", jsonl(rows)))


def load_or_one_line(path):
    """Any file ends in a table whose rows and rejects add up, or in one line of our own."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            table = load_tasks(path, max_bad_share=1)
    except ValueError as error:
        assert type(error) is ValueError and "\n" not in str(error)
        assert str(error).startswith(str(path))
    else:
        json.dumps(table.attrs, allow_nan=False)
        assert len(table) + len(table.attrs["rejects"]) == table.attrs["rows"]
        assert table[["task_id", "prompt", "answer"]].notna().all(axis=None)
        table["prompt"].str.encode("utf-8")


LENIENT = {"deadline": None, "suppress_health_check": [HealthCheck.function_scoped_fixture]}


@settings(max_examples=150, **LENIENT)
@given(
    st.sampled_from([".jsonl", ".json", ".csv", ".parquet"]), st.sampled_from([b"", b"\x1f\x8b", b"PAR1", b"["]), st.binary()
)
def test_random_bytes_never_crash(tmp_path, ending, start, content):
    path = tmp_path / f"t{ending}"
    path.write_bytes(start + content)
    load_or_one_line(path)


@settings(max_examples=250, **LENIENT)
@given(
    st.sampled_from(sorted(FILES)), st.lists(st.tuples(st.integers(0, 10**6), st.binary(max_size=3)), min_size=1, max_size=4)
)
def test_files_with_some_bytes_changed_never_crash(tmp_path, name, changes):
    content = bytearray(FILES[name])
    for place, new in changes:
        place %= len(content)
        content[place : place + len(new)] = new
    path = tmp_path / name
    path.write_bytes(content)
    load_or_one_line(path)


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from(["user", "#### 5", "\ud800"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["role", "content", "ground_truth", "type", "text"]), inner, max_size=3)
    ),
    max_leaves=8,
)
FIELDS = ["question", "prompt", "answer", "solution", "messages", "reward_model", "task_id", "reward_model.ground_truth", "x"]
CHATS = st.lists(
    st.fixed_dictionaries({"role": st.sampled_from(["system", "user", "assistant"]), "content": VALUES}), max_size=4
)


@settings(max_examples=120, **LENIENT)
@given(st.lists(VALUES | st.dictionaries(st.sampled_from(FIELDS), VALUES | CHATS | st.just("5"), min_size=2), max_size=4))
def test_rows_of_any_shape_never_crash(tmp_path, rows):
    for name, content in (("t.jsonl", "\n".join(map(json.dumps, rows))), ("t.json", json.dumps(rows))):
        (tmp_path / name).write_text(content)
        load_or_one_line(tmp_path / name)
