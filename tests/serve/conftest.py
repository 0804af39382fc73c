"""A server of this process, one for each file of tests."""

import pytest
from running import MODELS, running


@pytest.fixture(scope="module")
def server():
    with running(MODELS) as found:
        yield found
