"""Each job on its own device: simulated ones, since only names are handed out."""

import os
import select
import signal
import subprocess
import sys

import pytest

from lad_utils.params import REPOSITORY

SAYS = 'echo "${CUDA_VISIBLE_DEVICES-untouched}"; read line'  # which device it has, then holds it until its input ends


@pytest.fixture
def start(tmp_path):
    """Start a holder of one of `count` devices; whatever still runs at the end is killed."""
    holders = []

    def begin(count, **variables):
        environment = {k: v for k, v in os.environ.items() if k not in ("CUDA_VISIBLE_DEVICES", "SLURM_JOB_ID")}
        environment |= {"TMPDIR": str(tmp_path), "PYTHONPATH": str(REPOSITORY), **variables}
        command = [sys.executable, "-m", "lad_utils.devices", str(count), "--", "sh", "-c", SAYS]
        pipes = {name: subprocess.PIPE for name in ("stdin", "stdout", "stderr")}
        holders.append(subprocess.Popen(command, env=environment, text=True, **pipes))
        return holders[-1]

    yield begin
    for holder in holders:
        holder.kill()
        holder.communicate()


def device(holder) -> str:
    return holder.stdout.readline().strip()


def test_four_jobs_on_four_devices_each_have_their_own_and_a_fifth_gets_that_of_a_killed_one(start):
    holders = [start(4) for _ in range(4)]
    devices = [device(holder) for holder in holders]
    assert sorted(devices) == ["0", "1", "2", "3"]
    fifth = start(4)
    assert fifth.stderr.readline() == "devices: all of 0, 1, 2, 3 are taken; waiting for one\n"
    assert not select.select([fifth.stdout], [], [], 0)[0]
    holders[2].send_signal(signal.SIGKILL)
    assert device(fifth) == devices[2]


def test_a_device_is_free_again_when_its_job_ends(start):
    first = start(1)
    assert device(first) == "0"
    first.communicate("\n")
    assert device(start(1)) == "0"


def test_only_devices_that_were_left_visible_are_handed_out(start):
    assert sorted(device(start(2, CUDA_VISIBLE_DEVICES="5, 3,1")) for _ in range(2)) == ["3", "5"]


def test_fewer_visible_devices_than_asked_for_end_in_one_line(start):
    said, why = start(2, CUDA_VISIBLE_DEVICES="5").communicate()
    assert not said and why == "devices: expected 2, found 1: CUDA_VISIBLE_DEVICES is '5'\n"


def test_inside_slurm_the_devices_that_it_gave_are_left_alone(start):
    for _ in range(2):
        assert device(start(1, SLURM_JOB_ID="7", CUDA_VISIBLE_DEVICES="2")) == "2"


def test_without_devices_nothing_is_set(start):
    assert device(start(0)) == "untouched"


def test_a_wrong_call_and_an_absent_command_end_in_one_line():
    for arguments, told in ((["x", "--", "true"], "usage: "), (["0", "--", "no-such-command"], "no-such-command")):
        command = [sys.executable, "-m", "lad_utils.devices", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": str(REPOSITORY)})
        assert done.returncode == 2 and done.stderr.count("\n") == 1 and told in done.stderr
