"""Derivatives that native kernels do not have are refused with what to do, and what is advised works."""

import pytest
import torch
import torch.autograd.forward_ad as forward_ad
from torch import Tensor, func

import elman
from elman import kernels
from elman.errors import InputError

needs_native = pytest.mark.skipif("native" not in kernels.available(), reason="the native module is not built")
X = torch.randn(2, 5, 3, dtype=torch.float64)


@pytest.fixture
def core() -> elman.Core:
    torch.manual_seed(0)
    return elman.stack("gru", 3, 4, layers=2).double()


def _tangent(core: elman.Core) -> Tensor | None:
    with forward_ad.dual_level():
        return forward_ad.unpack_dual(core.scan(forward_ad.make_dual(X, X))[0]).tangent


DERIVATIVES = {
    "vmap": lambda core: func.vmap(lambda x: core.scan(x)[0])(X.expand(3, 2, 5, 3)),
    "grad": lambda core: func.grad(lambda x: core.scan(x)[0].sum())(X),
    "jacrev": lambda core: func.jacrev(lambda x: core.scan(x)[0].sum(1))(X),
    "jvp": lambda core: func.jvp(lambda x: core.scan(x)[0], (X,), (X,))[1],
    "jacfwd": lambda core: func.jacfwd(lambda x: core.scan(x)[0].sum())(X),
    "forward AD": _tangent,
}


@needs_native
@pytest.mark.parametrize("how", DERIVATIVES)
def test_what_native_kernels_do_not_know_is_refused_and_the_reference_knows_it(how: str, core: elman.Core) -> None:
    with kernels.use("native"), pytest.raises(InputError, match=r'elman\.kernels\.use\("reference"\)'):
        DERIVATIVES[how](core)
    with kernels.use("reference"):
        assert DERIVATIVES[how](core) is not None


@needs_native
def test_without_gradients_a_tangent_is_not_lost_without_a_word() -> None:
    with torch.no_grad(), forward_ad.dual_level(), pytest.raises(InputError, match="forward-mode"):
        kernels.sigmoid(forward_ad.make_dual(X, X))


SYMBOLS, CHAIN = torch.tensor([1, 0]), torch.full((3, 3), 1 / 3, dtype=torch.float64)
MARKOV = torch.tensor([5, 5]), torch.zeros(2, 5, dtype=torch.bool)


@needs_native
@pytest.mark.parametrize(
    "run",
    [
        lambda w: kernels.linear(X, w),
        lambda w: kernels.linear(X, w.detach() * 1, w[:, 0]),
        lambda w: kernels.softmax_log_prob(X[:, 0], w, None, SYMBOLS),
        lambda w: kernels.softmax_log_prob_sum(X[:, 0], w.detach() * 1, w[:, 0], SYMBOLS),
        lambda w: kernels.layer_norm(X, CHAIN[0], w[0], 1e-5),
        lambda w: kernels.hmm_log_prob(X, CHAIN[0], w, CHAIN[:2], *MARKOV),
        lambda w: kernels.hmm_filter(X, w[0], CHAIN, CHAIN[:2], *MARKOV),
    ],
    ids=["linear", "linear's bias", "softmax", "softmax's bias", "norm's bias", "hmm", "filter"],
)
def test_a_tangent_of_any_argument_is_not_lost(run) -> None:
    with torch.no_grad(), forward_ad.dual_level(), pytest.raises(InputError, match="forward-mode"):
        w = torch.eye(3, dtype=torch.float64)
        run(forward_ad.make_dual(w, w))


def test_the_tangent_is_the_derivative(core: elman.Core) -> None:
    with kernels.use("reference"):
        tangent = _tangent(core)
        assert tangent is not None
        nearby = (core.scan(X + 1e-6 * X)[0] - core.scan(X - 1e-6 * X)[0]) / 2e-6
    torch.testing.assert_close(tangent, nearby, rtol=1e-6, atol=1e-8)
