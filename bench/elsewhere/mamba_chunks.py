# transformers, Mamba: several tokens after a cache are read from a state of zeros
import torch
from transformers import MambaConfig, MambaForCausalLM

torch.manual_seed(0)
model = MambaForCausalLM(MambaConfig(vocab_size=64, hidden_size=32, num_hidden_layers=2, state_size=8)).eval()
x = torch.randint(0, 64, (1, 12))
with torch.no_grad():
    whole = model(x).logits[:, 6:]
    cache = model(x[:, :6], use_cache=True).cache_params
    rest = model(x[:, 6:], cache_params=cache, use_cache=True).logits
print(f"six tokens after six: off by {(rest - whole).abs().max():.1e} where outputs are up to {whole.abs().max():.1f}")
