"""Where a study's files live, how they are written so that a kill never leaves half a file, and what produced them."""

import hashlib
import json
import os
import platform
import subprocess
import tempfile
from importlib import metadata
from pathlib import Path

import pandas as pd
import yaml

from lad_utils.params import REPOSITORY, Study

OUTPUTS = REPOSITORY / "outputs"
REFERENCE = OUTPUTS / "reference" / "micro"
PUBLISHED = {"micro-reference": "micro", "micro-gaps": "micro-gaps"}  # study -> its folder in outputs/reference
VERSIONED = ("torch", "transformers", "trl", "sentence-transformers", "accelerate", "datasets", "numpy", "pandas", "scipy")


def study_dir(study: Study | str) -> Path:
    """`outputs/<study>`, made if absent. `LAD_OUTPUTS` moves `outputs` elsewhere (tests use it)."""
    name = study if isinstance(study, str) else study.study
    folder = Path(os.environ.get("LAD_OUTPUTS", OUTPUTS)) / name
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def published(study: Study) -> Path:
    """The folder whose numbers notebooks check: the reference's, or the study's own while it is made or absent."""
    mine = study.study == "micro-reference" or not (REFERENCE / "results.json").is_file()
    return study_dir(study) if mine else REFERENCE


def base_folder(study: Study, name: str = "base") -> Path:
    """Where `00_micro_base` puts the study's base model, or the one called `name`: `larger`, `smaller`."""
    return study_dir(study) / name


def base_digest(study: Study, name: str = "base") -> str:
    """Digest of the weights of base_folder(study, name): rollouts of another model are never taken for this one's."""
    return hashlib.blake2b((base_folder(study, name) / "model.safetensors").read_bytes(), digest_size=8).hexdigest()


def move_base(source: Path, target: Path) -> None:
    """Move a finished base model into place, its weights last: where they are, the model is whole."""
    target.mkdir(parents=True, exist_ok=True)
    for path in sorted(source.iterdir(), key=lambda p: p.name == "model.safetensors"):
        os.replace(path, target / path.name)
    source.rmdir()


def write_bytes(path: Path, data: bytes) -> Path:
    """Write atomically: temporary file beside the target, fsync, rename."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    return path


def write_text(path: Path, text: str) -> Path:
    return write_bytes(path, text.encode("utf-8"))


def write_json(path: Path, value) -> Path:
    """JSON, indented; NaN is refused, since no reader could tell its reason."""
    return write_text(path, json.dumps(value, indent=1, allow_nan=False) + "\n")


def write_table(path: Path, table: pd.DataFrame) -> Path:
    return write_bytes(path, table.to_parquet(index=False, compression="zstd"))


def read_table(path: Path) -> pd.DataFrame:
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"{path.parent.name}/{path.name} is missing: run the notebook that writes it first")
    return pd.read_parquet(path)


def write_params(path: Path, values: dict) -> Path:
    """Resolved parameters; the file is touched only when they changed, so that nothing re-runs needlessly."""
    text = yaml.safe_dump(values, sort_keys=False, allow_unicode=True)
    return path if path.is_file() and path.read_text(encoding="utf-8") == text else write_text(path, text)


def git_commit() -> str:
    """The commit that the code is at, with `+changes` when the working tree differs from it."""

    def git(*args):
        return subprocess.run(["git", *args], cwd=REPOSITORY, capture_output=True, text=True)

    head = git("rev-parse", "--short=10", "HEAD")
    if head.returncode:
        return "unknown"
    dirty = git("status", "--porcelain", "--untracked-files=no", "--", "lad_utils", "notebooks", "params").stdout.strip()
    return head.stdout.strip() + ("+changes" if dirty else "")


def environment() -> dict:
    """Versions, commit and machine that a result came from."""
    return {
        "commit": git_commit(),
        "python": platform.python_version(),
        "packages": {name: metadata.version(name) for name in VERSIONED},
        "machine": platform.machine(),
        "system": platform.system(),
        "cores": os.cpu_count(),
    }
