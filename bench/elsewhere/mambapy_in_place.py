# mambapy: a step changes the list of caches that it is given
import torch
from mambapy.mamba import Mamba, MambaConfig

torch.manual_seed(0)
config = MambaConfig(d_model=16, n_layers=2)
model, x = Mamba(config), torch.randn(2, 16)
caches = [(None, torch.zeros(2, config.d_inner, config.d_conv - 1)) for _ in range(config.n_layers)]
with torch.no_grad():
    first = model.step(x, caches)[0]
    again = model.step(x, caches)[0]
print(f"the same step from the same caches: off by {(again - first).abs().max():.1e}")
