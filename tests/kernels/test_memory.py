"""What the kernels keep between calls: memory that is used again, never memory that somebody holds, and given back."""

from __future__ import annotations

import os
import resource
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from elman import kernels
from elman.cells import cell

pytestmark = pytest.mark.skipif(kernels.active() != "native", reason="the reference keeps nothing")
if kernels.active() == "native":
    from elman import _native
    from elman.kernels.native import memory

    keeping = pytest.mark.skipif(not _native.KEEPS_MEMORY, reason="a sanitizer sees every use")

B, T, C = 2, 512, 256  # 1 MB


def scan(value: float, size: int = C) -> Tensor:
    b = torch.full((B, T, size), value)
    zeros = torch.zeros(B, size)
    return kernels.linear_scan(torch.zeros(size), b, zeros, torch.full((B,), T), torch.zeros(B, T, dtype=torch.bool))[0]


def faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def resident() -> float:
    """Megabytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


@keeping
def test_memory_of_an_output_that_is_gone_is_used_again() -> None:
    first = scan(1.0)
    where = first.data_ptr()
    del first
    assert scan(2.0).data_ptr() == where


@pytest.mark.parametrize(
    "hold",
    [
        lambda y: y,
        lambda y: y[1, 3:5],
        lambda y: y.numpy(),
        lambda y: y.untyped_storage(),
        lambda y: np.from_dlpack(y),
        lambda y: torch.utils.dlpack.to_dlpack(y),
        lambda y: (y * torch.ones((), requires_grad=True)).grad_fn,
        lambda y: torch.nn.Parameter(y),
    ],
    ids=["tensor", "view", "numpy", "storage", "numpy of dlpack", "dlpack", "graph", "parameter"],
)
def test_what_somebody_holds_is_not_written_to(hold: Callable[[Tensor], object]) -> None:
    y = scan(1.0)
    where, held = y.data_ptr(), hold(y)
    del y
    assert where not in {scan(2.0).data_ptr() for _ in range(3)}
    del held


@keeping
def test_what_another_process_may_read_is_not_written_to() -> None:
    y = scan(1.0).share_memory_()  # what a queue of torch.multiprocessing does to what is put in
    file = torch.UntypedStorage._new_shared_fd_cpu(*y.untyped_storage()._share_fd_cpu_())  # type: ignore[attr-defined]
    there = torch.empty(0).set_(file, 0, y.shape)  # type: ignore[call-overload]
    del y
    for i in range(3):
        scan(2.0 + i)
    assert float(there.min()) == float(there.max()) == 1.0


@keeping
def test_what_is_shared_is_forgotten_with_its_file() -> None:
    kernels.release_memory()
    before = len(os.listdir("/proc/self/fd"))
    for i in range(8):  # of different sizes, as ragged batches have
        scan(0.0, C + 16 * i).share_memory_()
    scan(0.0, C + 16 * 8)
    assert len(os.listdir("/proc/self/fd")) == before
    assert memory._total == sum(s.nbytes() for same in memory._kept.values() for s in same) == B * T * (C + 16 * 8) * 4


def test_rows_of_a_batch_that_are_kept_stay_as_they_were() -> None:
    kept = [scan(float(i))[0, -1] for i in range(8)]
    assert [float(row[0]) for row in kept] == [float(i) for i in range(8)]


@keeping
@pytest.mark.parametrize("mode", [torch.inference_mode, torch.enable_grad])
def test_memory_of_inference_serves_training_and_the_other_way_round(mode: Callable[[], object]) -> None:
    with torch.inference_mode():
        where = scan(1.0).data_ptr()
    with mode():  # type: ignore[attr-defined]
        y = scan(3.0)
    assert y.data_ptr() == where and float(y[0, 0, 0]) == 3.0
    w = torch.ones(C, requires_grad=True)
    if not y.is_inference():
        (w * y).sum().backward()
        assert w.grad is not None and float(w.grad[0]) == 3.0 * B * T


@keeping
def test_no_more_is_remembered_than_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    kernels.release_memory()
    monkeypatch.setattr(memory, "BOUND", 3 << 20)
    held = [scan(0.0, C + 16 * i) for i in range(6)]
    kept = sum(storage.nbytes() for same in memory._kept.values() for storage in same)
    assert 0 < kept <= memory.BOUND and memory._total == kept
    assert len(held) == 6


def _viterbi(steps: int) -> None:
    K = 64
    x = torch.zeros(1, steps, K, dtype=torch.float64)
    chain = torch.full((K, K), 1 / K, dtype=torch.float64)
    kernels.viterbi(x, chain[0], chain, torch.tensor([steps]), torch.zeros(1, steps, dtype=torch.bool))


@keeping
def test_the_second_call_has_no_page_faults_of_its_memory() -> None:
    """Its scores alone are 5 MB, 1,250 pages."""
    K, steps = 64, 10_000
    x = torch.zeros(1, steps, K, dtype=torch.float64)
    chain = torch.full((K, K), 1 / K, dtype=torch.float64)
    given = x, chain[0], chain, torch.tensor([steps]), torch.zeros(1, steps, dtype=torch.bool)
    counts = []
    for _ in range(8):
        before = faults()
        kernels.viterbi(*given)
        counts.append(faults() - before)
    assert sorted(counts[3:])[2] < 20, counts


@keeping
def test_memory_is_given_back() -> None:
    for _ in range(2):
        _viterbi(100_000)  # 51 MB of scores
        scan(0.0, 1 << 14)  # 67 MB
    before = resident()
    kernels.release_memory()
    assert before - resident() > 100
    assert not memory._kept


@keeping
def test_a_thread_that_ends_gives_its_memory_back() -> None:
    kernels.release_memory()
    assert _native.scratch_kept() == 0
    kept = []

    def work() -> None:
        _viterbi(10_000)  # 5 MB of scores
        kept.append(_native.scratch_kept())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert kept[0] > 5_000_000
    for _ in range(100):  # the system's thread ends a little later than Python's
        if _native.scratch_kept() == 0:
            return
        time.sleep(0.01)
    raise AssertionError(f"{_native.scratch_kept()} bytes are kept by a thread that has ended")


@keeping
def test_a_size_of_which_nothing_is_kept_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """The system refused its memory, or all of it became shared."""
    kernels.release_memory()

    def refuse(nbytes: int) -> None:
        raise MemoryError

    with monkeypatch.context() as patch, pytest.raises(MemoryError):
        patch.setattr(memory, "_fresh", refuse)
        memory.storage(1 << 20)
    memory.storage(2 << 20).share_memory_()
    monkeypatch.setattr(memory, "BOUND", 3 << 20)
    held = [memory.storage((1 << 20) + i) for i in range(1, 7)]
    assert len(held) == 6 and 0 < memory._total <= memory.BOUND


def test_a_child_may_work_and_release() -> None:
    """What other threads held when a process was forked must not keep its child waiting."""
    _viterbi(1000)
    child = os.fork()
    if child == 0:
        left = -1
        try:
            _viterbi(1000)
            kernels.release_memory()
            left = _native.scratch_kept()
            _viterbi(1000)
        finally:
            os._exit(int(left != 0))
    assert os.waitpid(child, 0)[1] == 0


def _asks_for_memory() -> None:
    thread = threading.Thread(target=scan, args=(0.0,), daemon=True)
    thread.start()
    thread.join(10)
    assert not thread.is_alive()


def test_whoever_finds_the_lock_taken_does_not_wait() -> None:
    """A finaliser that the garbage collector calls would wait for its own thread."""
    with memory._lock:
        _asks_for_memory()


@keeping
def test_a_child_does_not_wait_for_a_thread_that_it_does_not_have() -> None:
    with memory._lock:
        child = os.fork()
        if child == 0:
            threading.Timer(10, os._exit, [1]).start()
            kernels.release_memory()
            scan(0.0)
            os._exit(0 if memory._total else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_threads_that_ask_at_once_get_memory_of_their_own() -> None:
    wrong: list[float] = []

    def work(value: float) -> None:
        for _ in range(50):
            y = scan(value)
            if not bool((y == value).all()):
                wrong.append(value)

    threads = [threading.Thread(target=work, args=(float(i),)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@keeping
def test_a_thread_keeps_no_more_scratch_than_its_bound() -> None:
    kernels.release_memory()
    for steps in (60_000, 80_000, 100_000):  # 31, 41 and 51 MB of scores
        _viterbi(steps)
    assert 40_000_000 < _native.scratch_kept() <= 1 << 26


@keeping
def test_a_smaller_call_does_not_take_a_larger_block_for_its_own() -> None:
    """What is kept is counted by the sizes that blocks have in truth, so that nothing is left of it after a release."""
    kernels.release_memory()
    _viterbi(40_000)
    kept = _native.scratch_kept()
    _viterbi(4_000)
    assert _native.scratch_kept() > kept
    kernels.release_memory()
    assert _native.scratch_kept() == 0


@keeping
def test_what_one_thread_took_and_another_gave_back_is_found_again() -> None:
    """Each thread of a backward pass takes room for its rows; the first one gives back that of all."""
    torch.manual_seed(0)
    core, x = cell("gru", 128, 128), torch.randn(16, 100, 128)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        kept = []
        for _ in range(20):
            core.scan(x)[0].sum().backward()
            kept.append(_native.scratch_kept())
    finally:
        torch.set_num_threads(before)
    assert kept[-1] < 1.5 * kept[4]
