"""What a source of tasks names, and how its bytes or its dataset are opened.

A source is the path of a file (gzip is seen by its content), the path of a folder that `datasets.save_to_disk` wrote
(`folder` or `folder:split`), or a dataset of the Hugging Face hub, `owner/name[@revision][:config][:split]`, where one name
alone is the split: `openai/gsm8k:main:train`, `openai/gsm8k@<commit>:main:train`, `owner/name:train`, and `owner/name` if it
has one split. A path that exists is never taken for a hub name. Nothing here can run code: no pickle, no dataset script.
"""

import gzip
import os
import re
import shutil
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, NamedTuple

import pyarrow

KINDS = {".jsonl": "json", ".ndjson": "json", ".json": "json", ".csv": "csv", ".parquet": "parquet"}
HUB = re.compile(r"([A-Za-z0-9][\w.-]*/[\w.-]+)(?:@([^\s@:]+))?(?::([^\s@:]+))?(?::([^\s@:]+))?")
EXPECTED = (
    "expected a .jsonl, .json, .csv or .parquet file (.gz too), a `datasets.save_to_disk` folder (folder:split)"
    " or a hub dataset owner/name[@revision][:config][:split]"
)
GZIP, PARQUET, UTF16 = b"\x1f\x8b", b"PAR1", (b"\xff\xfe", b"\xfe\xff")
EXCERPT = 120  # characters
# What the libraries below raise for damaged bytes.
DAMAGED = (pyarrow.ArrowException, OSError, EOFError, zlib.error, UnicodeError, OverflowError, RecursionError)


class Source(NamedTuple):
    kind: str  # json, csv, parquet, folder or hub
    name: str  # a path, or the dataset's name on the hub
    config: str | None = None
    split: str | None = None
    revision: str | None = None

    def __str__(self) -> str:
        revision = f"@{self.revision}" if self.revision else ""
        return ":".join(filter(None, (self.name + revision, self.config, self.split)))


def short(value) -> str:
    """The first characters of `repr(value)`, whatever the value."""
    try:
        return repr(value[:EXCERPT] if isinstance(value, (str, bytes)) else value)[:EXCERPT]
    except RecursionError:
        return f"a deeply nested {type(value).__name__}"


def one_line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


def ending(name: str) -> str:
    """`.jsonl` for `tasks.JSONL.gz`: the last ending that is not .gz, in lower case."""
    return next((suffix.lower() for suffix in reversed(Path(name).suffixes) if suffix.lower() != ".gz"), "")


def parse_source(source: str | os.PathLike) -> Source:
    """What `source` names. Raises FileNotFoundError if nothing, ValueError for what is no file of a known ending."""
    name = os.fspath(source)
    folder, _, split = name.rpartition(":")
    if os.path.isdir(name):
        return Source("folder", name)
    if os.path.exists(name):
        if os.path.isfile(name) and ending(name) in KINDS:
            return Source(KINDS[ending(name)], name)
        found = f"the ending {ending(name)!r}" if os.path.isfile(name) else "no regular file"
        raise ValueError(f"{name}: found {found}, {EXPECTED}")
    if os.path.isdir(folder):
        return Source("folder", folder, split=split)
    hub = HUB.fullmatch(name) if isinstance(source, str) and ending(name) not in KINDS else None
    if hub is None:
        raise FileNotFoundError(f"{name!r}: no such task file, {EXPECTED}")
    dataset, revision, first, second = hub.groups()
    return Source("hub", dataset, first if second else None, second or first, revision)


def stem(source: Source) -> str:
    """What the source's rows are called by: `train` for train.jsonl.gz, `gsm8k-train` for openai/gsm8k:main:train."""
    base = Path(source.name).name
    return "-".join(filter(None, (base, source.split))) if source.kind in ("folder", "hub") else base.split(".")[0]


@contextmanager
def opened(source: Source, *, max_unpacked_bytes: int) -> Iterator[tuple[BinaryIO, bool]]:
    """A file's unpacked bytes and whether it was gzip; ValueError if they are damaged, too many, or of another format.

    A gzip file is unpacked as a whole, to disk if large, so that a damaged end is found before its first row is used.
    """
    with open(source.name, "rb") as file, tempfile.SpooledTemporaryFile(2**26) as unpacked:
        is_gzip = file.read(2) == GZIP
        file.seek(0)
        with gzip.GzipFile(fileobj=file) as packed:
            while is_gzip and (chunk := packed.read(2**20)):
                if unpacked.tell() + len(chunk) > max_unpacked_bytes:
                    raise ValueError(
                        f"found a gzip file, expected at most {max_unpacked_bytes} bytes in it (max_unpacked_bytes)"
                    )
                unpacked.write(chunk)
        stream = unpacked if is_gzip else file
        stream.seek(0)
        start = stream.read(4)
        stream.seek(0)
        if start[:2] in UTF16 or (start == PARQUET) != (source.kind == "parquet"):
            found = "a Parquet file" if start == PARQUET else "UTF-16 text" if start[:2] in UTF16 else short(start)
            raise ValueError(f"found {found}, expected {'a Parquet file' if source.kind == 'parquet' else 'UTF-8 text'}")
        yield stream, is_gzip


def open_dataset(source: Source) -> tuple:
    """(datasets.Dataset, its name in a DatasetDict or None) of a folder or a hub name; ValueError if that is not clear."""
    import datasets  # here: it takes seconds, and files don't need it

    try:
        if source.kind == "folder":
            found = datasets.load_from_disk(source.name)
        else:
            found = datasets.load_dataset(source.name, source.config, split=source.split, revision=source.revision)
    except Exception as error:  # datasets, the hub's client and the network raise dozens of classes
        raise ValueError(f"could not be loaded ({one_line(error)}), {EXPECTED}") from None
    if not isinstance(found, dict):
        if source.kind == "folder" and source.split:
            raise ValueError(f"found a dataset without splits, expected `{source.name}`")
        return found, None
    split = source.split or "".join(list(found)[:1])
    if split not in found or (len(found) > 1 and not source.split):
        example = source._replace(split=next(iter(found), "train"))
        raise ValueError(f"found the splits {', '.join(found)}, expected one of them, as in `{example}`")
    return found[split], split


def save_dataset(dataset, split: str | None, folder: Path) -> None:
    """`save_to_disk` under a temporary name, fsync, rename; a folder that is there is not replaced: ValueError."""
    import datasets

    if folder.exists():
        raise ValueError(f"{folder}: found it there already, expected a new folder, since folders are not overwritten")
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
    try:
        (datasets.DatasetDict({split: dataset}) if split else dataset).save_to_disk(temporary)
        for path in filter(Path.is_file, temporary.rglob("*")):
            with open(path, "rb") as file:
                os.fsync(file.fileno())
        temporary.chmod(0o755)
        os.rename(temporary, folder)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
