"""Whether a program passes tests, run where it can do no harm: bubblewrap, no network, nothing writable, limits on everything.

Both sides are hostile input, the tests from a buyer's file and the program from a model, so each runs in a sandbox of its own
(`lad_utils.sandbox_guest`). The verdict is written by the tests' process, which the program can reach only by returning plain
data: `sys.exit(0)`, patched asserts, objects equal to everything and forged verdicts are wrong answers like any other.
"""

import contextlib
import functools
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

GUEST = Path(__file__).with_name("sandbox_guest.py")
UNSANDBOXED = "run answers without a sandbox"  # what LAD_UNSANDBOXED must say, in these words
MOST_SOURCE = 200_000  # characters of program or tests


class SandboxError(RuntimeError):
    """No verdict: there is no sandbox, or it did not start."""


@dataclass(frozen=True)
class Limits:
    """Of each of the two processes: CPU time is what decides, wall-clock time ends what waits."""

    cpu_seconds: int = 5
    wall_seconds: float = 20.0
    memory_bytes: int = 512 * 2**20
    processes: int = 4  # and threads, its own among them
    output_bytes: int = 2**20  # of one returned value


LIMITS = Limits()


class Verdict(NamedTuple):
    passed: bool
    reason: str  # `passed`, or what ended it


def _isolated(root: bool) -> list[str]:
    """bubblewrap's options: new namespaces, system libraries and the interpreter read-only, nothing else there."""
    # Root's own processes are never counted by RLIMIT_NPROC, so as root the guest takes a user id of its own instead.
    command = ["--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"]
    command += ["--cap-drop", "ALL", "--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"] if root else ["--unshare-user"]
    command += ["--die-with-parent", "--new-session", "--clearenv", "--dev-bind", "/dev/null", "/dev/null"]
    for folder in ("/usr", "/lib", "/lib64"):
        if os.path.islink(folder):
            command += ["--symlink", os.readlink(folder), folder]
        elif os.path.isdir(folder):
            command += ["--ro-bind", folder, folder]
    if not sys.base_prefix.startswith("/usr"):
        # A folder on the way that only root may enter (/root) would keep the guest from its own library.
        for parent in reversed(Path(sys.base_prefix).parents[:-1]):
            command += ["--perms", "0755", "--dir", str(parent)]
        command += ["--ro-bind", sys.base_prefix, sys.base_prefix]
    return [*command, "--ro-bind", str(GUEST), "/guest.py", "--remount-ro", "/", "--chdir", "/"]


def _interpreter() -> str:
    return os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)


@functools.cache
def _checked(bwrap: str, root: bool) -> list[str]:
    """The start of every sandbox's command, tried once."""
    command = [bwrap, *_isolated(root), "--", _interpreter(), "-I", "-S"]
    tried = subprocess.run([*command, "-c", "print('ready')"], capture_output=True, text=True, timeout=60)
    if tried.stdout != "ready\n":
        said = " ".join(tried.stderr.split())[:200] or f"exit status {tried.returncode}"
        raise SandboxError(f"sandbox: bubblewrap cannot start one here ({said}), expected unprivileged user namespaces")
    return [*command, "/guest.py"]


def _command(root: bool) -> list[str]:
    if os.environ.get("LAD_UNSANDBOXED") == UNSANDBOXED:
        return [_interpreter(), "-I", "-S", str(GUEST)]
    bwrap = shutil.which("bwrap")
    if bwrap is None:
        raise SandboxError(
            "sandbox: found no `bwrap`, expected bubblewrap (apt-get install bubblewrap) around code that a model wrote;"
            f" without one, on a machine with nothing to lose, set LAD_UNSANDBOXED={UNSANDBOXED!r}"
        )
    return _checked(bwrap, root)


def _start(job: dict, stdin: int, stdout: int, verdict: int) -> subprocess.Popen:
    """A guest, its job in a file without a name."""
    root = os.geteuid() == 0
    with tempfile.TemporaryFile() as file:
        file.write(json.dumps({**job, "uid": 2**20 + secrets.randbelow(2**20) if root else None}).encode())
        file.flush()
        command = [*_command(root), str(file.fileno()), str(verdict)]
        fds = [fd for fd in (file.fileno(), verdict) if fd >= 0]
        pipes = {"stdin": stdin, "stdout": stdout, "stderr": subprocess.DEVNULL}
        return subprocess.Popen(command, pass_fds=fds, start_new_session=True, env={}, cwd="/", **pipes)


def run_tests(program: str, *, prompt: str, test: str, entry_point: str, limits: Limits = LIMITS) -> Verdict:
    """Whether `program` defines an `entry_point` that passes `test`; always ends, at the latest after `limits.wall_seconds`.

    `prompt` is code that the tests may need (helpers, imports); `test` is top-level asserts or a function `check(candidate)`,
    as in HumanEval (Chen et al. 2021, arXiv 2107.03374). Arguments and results cross as plain data; another kind of result,
    a test that never calls the function, a limit passed are all wrong. Raises SandboxError where no sandbox can be had.
    """
    if max(map(len, (program, prompt, test))) > MOST_SOURCE:
        return Verdict(False, f"failed: source over {MOST_SOURCE} characters")
    job = {"limits": asdict(limits)}
    tests = {"prompt": prompt, "test": test, "entry_point": entry_point}
    (calls_in, calls_out), (replies_in, replies_out), (verdict_in, verdict_out) = os.pipe(), os.pipe(), os.pipe()
    inherited = [calls_in, calls_out, replies_in, replies_out, verdict_out]
    processes: list[subprocess.Popen] = []
    late = False
    with os.fdopen(verdict_in, "rb") as verdict:
        try:
            processes.append(_start({**job, "program": program}, calls_in, replies_out, -1))
            processes.append(_start({**job, "tests": tests}, replies_in, calls_out, verdict_out))
            while inherited:
                os.close(inherited.pop())
            processes[1].wait(limits.wall_seconds)
        except subprocess.TimeoutExpired:
            late = True
        finally:
            for descriptor in inherited:
                os.close(descriptor)
            for process in processes:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        said = verdict.read(200).decode(errors="replace")
    started, _, reason = said.partition("\n")
    if started != "ready":
        raise SandboxError(
            f"sandbox: {started or 'the tests did not start'} within {limits.wall_seconds:g} s, expected both sides"
        )
    return Verdict(reason == "passed", reason or ("failed: wall-clock limit" if late else "failed: a limit ended the tests"))
