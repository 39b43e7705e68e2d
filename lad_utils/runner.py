"""Run a study's notebooks through snakemake: one line a finished job, a time left, and clean stops and restarts.

`python -m lad_utils.runner STUDY [--cores N] [--gpus N] [--until RULE] [--profile NAME]`. Exit codes: 0 done, 1 a notebook
failed, 2 the study can't start (one line says why), 130 stopped. Kill it at any instant: the same command ends what the
killed one left running, in Slurm, too, and continues from finished work.
"""

import argparse
import fcntl
import hashlib
import json
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import yaml

from lad_utils.params import REPOSITORY, ParamsError, load_study
from lad_utils.progress import (
    NOTEBOOKS,
    Progress,
    clock,
    count_jobs,
    failure_line,
    measured_before,
    name_of,
    notebook_log,
    prior_seconds,
    remaining_seconds,
)
from lad_utils.runs import study_dir

HEARTBEAT = 60  # seconds without a finished job after which a line says what runs
MARK = "LAD_RUN"  # everything that a runner starts carries the study's folder under this name
PROFILES = REPOSITORY / "profiles"
UNENDED = "PENDING,CONFIGURING,RUNNING,SUSPENDED,COMPLETING"  # states of a Slurm job that may still run something


def marked_processes(folder: Path) -> list[psutil.Process]:
    """Live processes that a runner of this study started, with their children; not this one, nor those that it runs in.

    Nor those that Slurm runs on this very machine, which inherit the mark: `cancel_slurm` ends them.
    """
    spared = {os.getpid(), *(p.pid for p in psutil.Process().parents())}
    here, found = {None, os.environ.get("SLURM_JOB_ID")}, {}
    for process in psutil.process_iter():
        try:
            values = process.environ()
            ours = values.get(MARK) == str(folder) and values.get("SLURM_JOB_ID") in here
            if ours and process.status() != psutil.STATUS_ZOMBIE:
                found |= {p.pid: p for p in [process, *process.children(recursive=True)]}
        except psutil.Error:  # ended meanwhile, or another user's
            continue
    return [p for pid, p in found.items() if pid not in spared]


def end_processes(folder: Path, *, within: float = 20.0) -> int:
    """Kill what `marked_processes` finds until nothing is left (a dying one may have started another); how many there were.

    SIGKILL, since a run survives it anywhere and snakemake answers SIGTERM by waiting for its jobs.
    """
    ended, deadline = set(), time.monotonic() + within
    while (alive := marked_processes(folder)) and time.monotonic() < deadline:
        for process in alive:
            ended.add(process.pid)
            try:
                process.kill()
            except psutil.Error:
                continue
        psutil.wait_procs(alive, timeout=0.5)
    return len(ended)


def slurm_prefix(folder: Path) -> str:
    """What the names of a study's Slurm jobs begin with, the same in every run of it: 'lad-smoke-0a1b2c3d4e5f'."""
    digest = hashlib.blake2b(str(folder).encode(), digest_size=6).hexdigest()
    return f"lad-{re.sub('[^A-Za-z0-9]', '-', folder.name)[:30]}-{digest}"  # the plugin takes 50 letters, digits and hyphens


def slurm_jobs(folder: Path) -> list[str]:
    """Ids of a study's Slurm jobs that have not ended, those just being cancelled included; OSError when squeue fails."""
    asked = subprocess.run(
        ["squeue", "--me", "--noheader", f"--states={UNENDED}", "--format=%A %j"], capture_output=True, text=True
    )
    if asked.returncode:
        raise OSError(f"squeue: expected a list of this study's jobs, found: {' '.join(asked.stderr.split())}")
    jobs = [line.split() for line in asked.stdout.splitlines()]
    return list(dict.fromkeys(job for job, name in jobs if name.startswith(slurm_prefix(folder) + "_")))


def cancel_slurm(folder: Path, *, within: float = 300.0) -> int:
    """Cancel a study's Slurm jobs and wait until none runs anything; how many there were. OSError when some stay.

    Jobs outlive the snakemake that submitted them, and the next one would submit them again beside themselves.
    """
    cancelled, deadline = set(), time.monotonic() + within
    while jobs := slurm_jobs(folder):
        if time.monotonic() > deadline:
            raise OSError(
                f"Slurm jobs {', '.join(jobs)}: expected to end within {within:.0f} s of scancel, found them there still"
            )
        if new := set(jobs) - cancelled:
            subprocess.run(["scancel", *new], capture_output=True)  # one that ended meanwhile makes it fail: ask again
            cancelled |= new
        time.sleep(0.5)
    return len(cancelled)


def end_earlier(folder: Path, *, in_slurm: bool) -> tuple[int, int]:
    """(processes, Slurm jobs) of this study that were still there and are no more: the submitting snakemake first."""
    processes = end_processes(folder)
    # A study that once ran in Slurm may have jobs there, whatever the profile is now.
    asked = in_slurm or ((folder / ".snakemake" / "slurm_logs").is_dir() and shutil.which("squeue"))
    return processes, cancel_slurm(folder) if asked else 0


def own_study(folder: Path) -> int | None:
    """Lock the study while this process lives, and return the lock's handle; None when another live runner has it."""
    handle = os.open(folder / ".runner.lock", os.O_RDWR | os.O_CREAT, 0o644)  # closed on exec: orphans never hold it
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return handle
    except OSError:
        return os.close(handle)


def shown(path: Path) -> str:
    """A path as the reader would type it: from the current folder where it lies below."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


def read_profile(name: str) -> dict:
    """The settings of profiles/<name>; ParamsError when there are none, or when they need a Slurm that isn't there."""
    path = PROFILES / name / "config.yaml"
    if not path.is_file():
        known = ", ".join(sorted(p.parent.name for p in PROFILES.glob("*/config.yaml")))
        raise ParamsError(f"profile {name!r} is unknown; profiles: {known}")
    settings = yaml.safe_load(path.read_text(encoding="utf-8"))
    absent = [tool for tool in ("sbatch", "squeue", "scancel") if not shutil.which(tool)]
    if settings.get("executor") == "slurm" and absent:
        raise ParamsError(
            f"profile {name!r} runs jobs in Slurm: expected sbatch, squeue and scancel, not found: {', '.join(absent)}"
        )
    return settings


def start_snakemake(study: str, folder: Path, *, cores: int, until: str, profile: str, gpus: int) -> subprocess.Popen:
    """Snakemake over the study's DAG, marked; in a session of its own, so that a Ctrl-C reaches this process alone."""
    command = [sys.executable, "-m", "snakemake", "--snakefile", str(REPOSITORY / "Snakefile"), "--directory", str(folder)]
    command += ["--profile", str(PROFILES / profile), "--cores", str(cores), "--nocolor"]
    command += ["--config", f"study={study}", f"cores={cores}", f"gpus={gpus}"]
    command += (["--until", until] if until != "report" else []) + (["--resources", f"gpu={gpus}"] if gpus else [])
    if read_profile(profile).get("executor") == "slurm":
        command += ["--slurm-jobname-prefix", slurm_prefix(folder)]
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=os.environ | {MARK: str(folder), "LAD_OUTPUTS": str(folder.parent), "PYTHONUNBUFFERED": "1"},
        start_new_session=True,
        encoding="utf-8",
        errors="replace",
    )


def read_lines(stream, lines: queue.Queue, log: Path):
    """Move snakemake's output into a queue and its log file, then None: a thread's work, since a pipe has no timeout."""
    with open(log, "w", encoding="utf-8") as file:
        for line in stream:
            file.write(line)
            file.flush()
            lines.put(line.rstrip("\n"))
    lines.put(None)


def say(text: str, *, to=None):
    print(text, file=to or sys.stdout, flush=True)  # to a file or through make, too, a line is seen when it is said


def report_failures(progress: Progress, folder: Path):
    """One line why and one line where for each failed job not yet told of."""
    for job in progress.failed.values():
        if not job.get("told"):
            job["told"], stem = True, folder / notebook_log(job)
            why = failure_line(stem, unwritten=progress.unwritten(job))
            say(f"{name_of(job)} failed: {why}\n  {shown(stem)}.ipynb and .txt hold what it printed", to=sys.stderr)


def follow(child: subprocess.Popen, study, folder: Path, *, cores: int, until: str, place: str, gpus: int) -> int:
    """Print a line for each finished job until snakemake ends; its exit code. `cores`: one-thread jobs at once, at `place`."""
    lines, progress, begun = queue.Queue(), Progress(), time.monotonic()
    log = folder / "notebooks" / "snakemake.txt"
    log.parent.mkdir(exist_ok=True)
    threading.Thread(target=read_lines, args=(child.stdout, lines, log), daemon=True).start()
    total = sum(count_jobs(study, until=until).values())
    measured, prior, spoke, done = measured_before(folder), prior_seconds(study), begun, total

    def times(now: float) -> str:
        seconds = {rule: sum(m) / len(m) if (m := measured.get(rule)) else prior[rule] for rule in NOTEBOOKS}
        running = [(job["rule"], now - job["started"]) for job in progress.running.values()]
        left = remaining_seconds(progress.planned, running, seconds, cores=cores, gpus=gpus)
        return f"| elapsed {clock(now - begun)}" + (f" | about {clock(left)} left" if progress.planned.total() else "")

    while True:
        try:
            line = lines.get(timeout=1)
        except queue.Empty:
            line = ""
        now = time.monotonic()
        if line is None:
            break
        event, job = progress.feed(line, now=now) or (None, None)
        if event == "planned":
            done = total - progress.planned.total()
            known = f"{done} of {total} jobs already done" if done else f"{total} jobs to run"
            say(f"study {study.study}: {known}, {place}  {times(now)}")
        elif event == "finished":
            took = now - job["started"]
            measured.setdefault(job["rule"], []).append(took)
            progress.planned[job["rule"]] -= 1
            done += 1
            say(f"[{done:>{len(str(total))}}/{total}] {name_of(job):<34} {took:4.0f} s  {times(now)}")
        elif event == "retried" and job:
            why = failure_line(folder / notebook_log(job), unwritten=progress.unwritten(job))
            say(f"{name_of(job)} failed once and is tried again: {why}")
        elif event == "stopping":
            report_failures(progress, folder)
            if waiting := ", ".join(map(name_of, progress.running.values())):
                say(f"finishing what still runs, so that its work is kept: {waiting}", to=sys.stderr)
        elif now - spoke > HEARTBEAT and progress.running:
            running = [f"{name_of(job)} ({now - job['started']:.0f} s)" for job in progress.running.values()]
            say(f"  running: {', '.join(running)}  {times(now)}")
        else:
            continue
        spoke = now
    code = child.wait()
    report_failures(progress, folder)
    if code and not progress.failed:
        tail = [text for text in log.read_text(encoding="utf-8", errors="replace").splitlines() if text.strip()][-6:]
        say("\n  ".join(["snakemake stopped:", *tail, f"all of it: {shown(log)}"]), to=sys.stderr)
    if not code and not progress.planned:
        say(f"study {study.study}: {total} of {total} jobs already done")
    return code


def show_results(folder: Path):
    """The study's table and where its page and pictures are."""
    results = folder / "results.json"
    if results.is_file() and isinstance(table := json.loads(results.read_text(encoding="utf-8")).get("table"), str):
        say(f"\n{table.rstrip()}\n")
    for label, path in (("report", folder / "report.html"), ("figures", folder / "figures")):
        if path.exists():
            say(f"{label:<8} {shown(path)}")


def run(name: str, *, cores: int, until: str, profile: str = "local", gpus: int = 0) -> int:
    """Run a study up to a rule; the exit code."""
    try:
        settings = read_profile(profile)
        study = load_study(name)
        if study.study != name:
            raise ParamsError(f"{name}.yaml: key 'study': expected {name!r}, the file's name, found {study.study!r}")
        jobs = count_jobs(study, until=until)
        if until not in jobs:
            raise ParamsError(f"study {name!r} has no selections, so no rule {until!r}; rules: {', '.join(jobs)}")
        absent = [f"{NOTEBOOKS[r]}.ipynb" for r in jobs if not (REPOSITORY / f"notebooks/{NOTEBOOKS[r]}.ipynb").is_file()]
        if absent:
            raise ParamsError(f"study {name!r}: not found in notebooks/: {', '.join(absent)}")
    except ParamsError as error:
        say(str(error), to=sys.stderr)
        return 2
    folder = study_dir(study).resolve()
    in_slurm = settings.get("executor") == "slurm"
    at_once = settings["jobs"] if in_slurm else cores
    place = (f"up to {at_once} Slurm jobs at once" if in_slurm else f"{cores} cores") + (f", {gpus} GPUs" if gpus else "")
    begun, handle = time.monotonic(), own_study(folder)
    if handle is None:
        say(f"study {name!r} is already being run by another process; wait for it or stop it first", to=sys.stderr)
        return 2
    try:
        try:
            orphans, jobs = end_earlier(folder, in_slurm=in_slurm)
        except OSError as error:
            say(str(error), to=sys.stderr)
            return 2
        if orphans:
            say(f"ended {orphans} processes that an earlier run of this study had left behind")
        if jobs:
            say(f"cancelled {jobs} Slurm jobs that an earlier run of this study had left behind")
        for lock in (folder / ".snakemake" / "locks").glob("*"):  # ours alone: the study is locked
            lock.unlink(missing_ok=True)
        child = start_snakemake(name, folder, cores=cores, until=until, profile=profile, gpus=gpus)
        code = follow(child, study, folder, cores=at_once, until=until, place=place, gpus=gpus)
        if code:
            return 1
        say(f"study {name} done in {clock(time.monotonic() - begun)}" + ("" if until == "report" else f", up to {until}"))
        if until == "report":
            show_results(folder)
        return 0
    except (KeyboardInterrupt, BrokenPipeError):  # the latter when what reads this output, such as `head`, has ended
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        try:
            end_earlier(folder, in_slurm=in_slurm)
        except OSError as error:  # what it left running, the next run asks for again
            say(str(error), to=sys.stderr)
        say("stopped; the same command continues from finished work", to=sys.stderr)
        return 130
    finally:
        os.close(handle)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m lad_utils.runner", description="Run a study, or what is left of it.")
    parser.add_argument("study", help="a file's name in params/, without .yaml")
    parser.add_argument(
        "--cores", type=int, default=2, help="jobs side by side; in Slurm, the cores of the jobs that use several (default 2)"
    )
    parser.add_argument("--gpus", type=int, default=0, help="GPUs that jobs share, one each; 0 (default) leaves devices alone")
    parser.add_argument("--profile", default="local", help="a folder's name in profiles/ (default local)")
    parser.add_argument("--until", choices=list(NOTEBOOKS), default="report", metavar="RULE", help=", ".join(NOTEBOOKS))
    options = parser.parse_args(arguments)
    if options.cores < 1:
        parser.error(f"argument --cores: expected 1 or more, found {options.cores}")
    if options.gpus < 0:
        parser.error(f"argument --gpus: expected 0 or more, found {options.gpus}")
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:  # as nohup leaves it
            signal.signal(number, signal.default_int_handler)
    return run(options.study, cores=options.cores, until=options.until, profile=options.profile, gpus=options.gpus)


if __name__ == "__main__":
    sys.exit(main())
