"""Bytes to records, each with its line, and chosen records back to a file of the same format."""

import csv
import io
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from gzip import compress
from pathlib import Path
from typing import BinaryIO

import pyarrow
import pyarrow.parquet

from lad_utils.runs import write_bytes
from lad_utils.task_sources import DAMAGED, Source, ending, one_line, open_dataset, opened, save_dataset, short

BOM = b"\xef\xbb\xbf"
BATCH = 4096  # rows of Parquet and Arrow that are Python objects at a time
LONGEST_INTEGER = 4000  # digits; Python refuses to parse or print more than 4300
MAX_UNPACKED_BYTES = 2**32

Rows = Iterator[tuple[int, bytes, object]]  # line, its own bytes (none in Parquet and Arrow), the record or a RowError


class RowError(ValueError):
    """One row cannot be used: its kind, by which rows are counted, a line `what: found ..., expected ...` and an excerpt."""

    def __init__(self, kind: str, reason: str, excerpt: str = ""):
        super().__init__(reason)
        self.kind, self.excerpt = kind, excerpt


def _malformed(what: str, found: object, expected: str, raw: object) -> RowError:
    found = one_line(found) if isinstance(found, Exception) else found
    return RowError(f"malformed {what}", f"malformed {what}: found {found}, expected {expected}", short(raw))


def _checked_text(what: str, raw: bytes, record: object) -> object:
    """The record, or a RowError if its bytes are not UTF-8 (they were read with `surrogateescape`)."""
    try:
        raw.decode("utf-8")
    except UnicodeDecodeError as error:
        return _malformed(what, error, "UTF-8 text", raw)
    return record


def _repeated(names: Iterable[str]) -> str:
    """The names that occur twice or more, '' if none; empty names, as of an index column in CSV, don't count."""
    found = [name for name, count in Counter(names).items() if count > 1 and name]
    return short(found) if found else ""


def _json_decoder() -> Callable[[str, int], tuple[object, int]]:
    """`decode(text, start)` gives the JSON value there (a RowError if it must not be trusted) and where it ends.

    NaN and Infinity are read as Python reads them, so that a gold of NaN is reported as what it is.
    """
    faults = []

    def pairs(items: list) -> dict:
        record = dict(items)
        if len(record) < len(items):
            faults.append(f"the keys {_repeated(name for name, _ in items)} more than once")
        return record

    def integer(digits: str) -> int | None:
        if len(digits) <= LONGEST_INTEGER:
            return int(digits)
        faults.append(f"an integer of {len(digits)} digits")
        return None

    decoder = json.JSONDecoder(object_pairs_hook=pairs, parse_int=integer)

    def decode(text: str, start: int) -> tuple[object, int]:
        faults.clear()
        value, end = decoder.raw_decode(text, start)
        expected = f"each key once and at most {LONGEST_INTEGER} digits"
        return (_malformed("JSON", faults[0], expected, text[start:end]) if faults else value), end

    return decode


def _jsonl_rows(stream: BinaryIO) -> Rows:
    decode = _json_decoder()
    # A binary stream splits at b"\n" only: str.splitlines would also cut at U+2028 inside a JSON string.
    for line, raw in enumerate(stream, start=1):
        if raw.removeprefix(BOM).strip():
            try:
                text = raw.decode("utf-8-sig").strip(" \t\r\n")
                record, end = decode(text, 0)
                if end < len(text):
                    record = _malformed("JSON", f"more text after it, {short(text[end:])}", "one JSON object", raw)
            except (ValueError, RecursionError) as error:
                record = _malformed("JSON", error, "one JSON object", raw)
            yield line, raw, record


def _array_rows(stream: BinaryIO) -> Rows:
    """Elements of a JSON array. A broken one hides where the next begins, so it ends the reading: ValueError."""
    text = stream.read().removeprefix(BOM).decode("utf-8", "surrogateescape")
    decode, blank, row = _json_decoder(), re.compile(r"[ \t\r\n]*"), 0
    position = blank.match(text, text.index("[") + 1).end()
    closed = text[position : position + 1] == "]"
    while not closed:
        try:
            record, end = decode(text, position)
            after = blank.match(text, end).end()
            closed, rest = text[after : after + 1] == "]", text[after : after + 20]
            if not closed and rest[:1] != ",":
                raise ValueError(f"{short(rest)} at character {after}")
        except (ValueError, RecursionError) as error:
            raise ValueError(f"found a bad JSON array after row {row} ({one_line(error)}), expected [object, ...]") from None
        row, raw = row + 1, text[position:end].encode("utf-8", "surrogateescape")
        yield row, raw, _checked_text("JSON", raw, record)
        position = after if closed else blank.match(text, after + 1).end()
    if text[position + 1 :].strip():
        raise ValueError(f"found {short(text[position + 1 :].strip())} after the JSON array's end, expected nothing")


def _csv_rows(stream: BinaryIO) -> Rows:
    """Line 0 is the header. The csv module keeps every field a string ("016", "NA"), where pandas would guess types."""
    taken = []

    def lines() -> Iterator[str]:
        first = True
        for text in io.TextIOWrapper(stream, encoding="utf-8", errors="surrogateescape", newline=""):
            taken.append(text)
            yield text.removeprefix("\ufeff") if first else text
            first = False

    csv.field_size_limit(2**31 - 1)
    reader, header = csv.reader(lines(), strict=True), None
    while True:
        taken.clear()
        line = reader.line_num + 1
        try:
            record = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            if "unexpected end" in str(error):
                raise ValueError(f"line {line}: found a quoted field that never ends, expected a closing quote") from None
            record = error
        raw = "".join(taken).encode("utf-8", "surrogateescape")
        if not raw.removeprefix(BOM).strip():
            continue
        if isinstance(record, csv.Error):
            record = _malformed("CSV", record, "quotes around a whole field", raw)
        elif header is None:
            line, header, record = 0, record, None
            if _repeated(header) or _checked_text("CSV", raw, record):
                raise ValueError(f"found the CSV header {short(raw)}, expected UTF-8 text with each name once")
        elif len(record) != len(header):
            record = _malformed("CSV", f"{len(record)} fields", f"{len(header)}, as in the header", raw)
        else:
            record = dict(zip(header, record))
        yield line, raw, _checked_text("CSV", raw, record)


def _arrow_rows(batches: Iterable[pyarrow.RecordBatch | pyarrow.Table]) -> Rows:
    def records(batch):
        try:
            yield from batch.to_pylist()
        except (*DAMAGED, ValueError) as error:  # text that is no UTF-8, dates out of range: only their own rows are bad
            if batch.num_rows > 1:
                for position in range(batch.num_rows):
                    yield from records(batch.slice(position, 1))
            else:
                yield _malformed("row", error, "readable values", "")

    row = 0
    for batch in batches:
        if repeated := _repeated(batch.schema.names):
            raise ValueError(f"found the columns {repeated} more than once, expected each once")
        for record in records(batch):
            row += 1
            yield row, b"", record


def _is_array(stream: BinaryIO) -> bool:
    start = stream.read(2**16).removeprefix(BOM).lstrip()
    stream.seek(0)
    return start[:1] == b"["


def _file_rows(source: Source, stream: BinaryIO) -> Rows:
    if source.kind == "parquet":
        return _arrow_rows(pyarrow.parquet.ParquetFile(stream).iter_batches(BATCH))
    if source.kind == "csv":
        return _csv_rows(stream)
    return _array_rows(stream) if _is_array(stream) else _jsonl_rows(stream)


def read_records(source: Source, *, max_unpacked_bytes: int = MAX_UNPACKED_BYTES) -> Iterator[tuple[int, object]]:
    """(line or row number from 1, record or RowError) of every row, in order; blank lines are no rows.

    Rows of a JSON array, Parquet and datasets are counted; a CSV row over several lines has the number of its first.
    Raises ValueError, one line that begins with the source, for what is damaged as a whole.
    """
    try:
        if source.kind in ("folder", "hub"):
            for line, _, record in _arrow_rows(open_dataset(source)[0].with_format("arrow").iter(BATCH)):
                yield line, record
        else:
            with opened(source, max_unpacked_bytes=max_unpacked_bytes) as (stream, _):
                for line, _, record in _file_rows(source, stream):
                    if line:
                        yield line, record
    except DAMAGED as error:
        raise ValueError(f"{source}: found damaged bytes ({one_line(error)}), expected a whole {source.kind} file") from None
    except ValueError as error:
        raise ValueError(f"{source}: {error}") from None


def _parquet_subset(stream: BinaryIO, lines: set[int]) -> bytes:
    """The rows of `lines` with the file's own schema, metadata, row groups and compression."""
    file, buffer, first = pyarrow.parquet.ParquetFile(stream), io.BytesIO(), 1
    codecs = {file.metadata.row_group(0).column(0).compression.lower()} if file.num_row_groups else set()
    codec = next(iter(codecs & {"snappy", "gzip", "brotli", "zstd", "lz4"}), "none")
    with pyarrow.parquet.ParquetWriter(buffer, file.schema_arrow, compression=codec) as writer:
        for group in range(file.num_row_groups):
            table = file.read_row_group(group)
            writer.write_table(table.filter([line in lines for line in range(first, first + table.num_rows)]))
            first += table.num_rows
    return buffer.getvalue()


def write_records(source: Source, path, lines: set[int], *, max_unpacked_bytes: int = MAX_UNPACKED_BYTES) -> Path:
    """Write the rows of `source` at `lines` (numbers of `read_records`) to `path`, in source order and atomically.

    Lines and array elements keep their bytes; Parquet keeps its schema, metadata and compression, gzip stays gzip, a folder
    becomes a `save_to_disk` folder, a hub dataset a Parquet file. Raises ValueError if `path` has another ending.
    """
    path = Path(path)
    expected = {"hub": ".parquet", "folder": ""}.get(source.kind, ending(source.name))
    if source.kind != "folder" and ending(path.name) != expected:
        raise ValueError(f"{path}: found the ending {ending(path.name)!r}, expected {expected}, the format of {source}")
    if source.kind in ("folder", "hub"):
        dataset, split = open_dataset(source)
        dataset = dataset.select([line - 1 for line in sorted(lines)])
        if source.kind == "folder":
            save_dataset(dataset, split, path)
            return path
        buffer = io.BytesIO()
        pyarrow.parquet.write_table(dataset.with_format("arrow")[:], buffer)
        data, is_gzip = buffer.getvalue(), False
    else:
        with opened(source, max_unpacked_bytes=max_unpacked_bytes) as (stream, is_gzip):
            if source.kind == "parquet":
                data = _parquet_subset(stream, lines)
            else:
                is_array = source.kind == "json" and _is_array(stream)
                raws = [raw for line, raw, _ in _file_rows(source, stream) if line in lines or line == 0]
                data = b"[\n" + b",\n".join(raws) + b"\n]\n" if is_array else b"".join(raws)
    return write_bytes(path, compress(data, mtime=0) if is_gzip or path.suffix.lower() == ".gz" else data)
