import os
import subprocess
import sys

import pytest

from elman.errors import FileError, InputError
from elman.training.lock import lock

HOLD = """
import sys, time
from pathlib import Path
from elman.training.lock import lock
with lock(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_folder_has_one_writer_and_a_killed_one_leaves_it_free(tmp_path):
    holder = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path / "run")], stdout=subprocess.PIPE, text=True)
    assert holder.stdout.readline() == "held\n"
    with pytest.raises(InputError, match=rf"run is being written by process {holder.pid}"), lock(tmp_path / "run"):
        pass
    holder.kill()
    holder.communicate()
    with lock(tmp_path / "run"):
        (tmp_path / "run" / "metrics.jsonl").write_text("")
    assert os.listdir(tmp_path / "run") == ["metrics.jsonl"]


def test_nothing_is_left_of_what_did_not_begin(tmp_path):
    with pytest.raises(ValueError), lock(tmp_path / "run"):
        raise ValueError
    assert not (tmp_path / "run").exists()
    (tmp_path / "file").write_text("")
    with pytest.raises(FileError, match="cannot make the run directory"), lock(tmp_path / "file" / "run"):
        pass
