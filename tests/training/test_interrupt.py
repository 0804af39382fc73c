import os
import signal
import threading

import pytest

from elman.training.interrupt import Interrupted, catch_signals


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1])
def test_the_first_signal_is_noted_and_the_second_does_what_it_did(number):
    came = []
    before = signal.signal(number, lambda n, frame: came.append(n))
    try:
        with catch_signals() as request:
            os.kill(os.getpid(), number)
            assert request.number == number and not came
            os.kill(os.getpid(), number)
            assert came == [number]
        os.kill(os.getpid(), number)
        assert came == [number, number]  # outside, everything is as it was
    finally:
        signal.signal(number, before)


def test_elsewhere_than_in_the_main_thread_nothing_is_noted():
    found = []

    def work():
        with catch_signals() as request:
            found.append(request.number)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [0]


def test_the_exit_code_is_that_of_a_shell():
    assert Interrupted(signal.SIGTERM, "stopped").exit_code == 143


def test_a_loop_that_goes_on_after_failures_does_not_go_on_after_ctrl_c():
    stop = Interrupted(signal.SIGINT, "stopped after step 3")
    assert isinstance(stop, KeyboardInterrupt) and not isinstance(stop, Exception)
    assert str(stop) == "stopped after step 3"
