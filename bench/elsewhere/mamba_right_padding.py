# transformers, Mamba-2: padding after a row, marked in the attention mask, goes into its state
import torch
from transformers import Mamba2Config, Mamba2ForCausalLM

torch.manual_seed(0)
config = Mamba2Config(
    vocab_size=64, hidden_size=32, num_hidden_layers=2, state_size=8, head_dim=16, num_heads=4, n_groups=2
)
model, x = Mamba2ForCausalLM(config).eval(), torch.randint(1, 64, (1, 9))
padded, mask = torch.cat([x[:, :8], torch.zeros(1, 4).long()], 1), torch.tensor([[1] * 8 + [0] * 4])
with torch.no_grad():
    alone = model(x[:, 8:], cache_params=model(x[:, :8], use_cache=True).cache_params).logits
    cache = model(padded, attention_mask=mask, use_cache=True).cache_params
    after = model(x[:, 8:], cache_params=cache).logits
print(f"the ninth token: off by {(after - alone).abs().max():.1e} where outputs are up to {alone.abs().max():.1f}")
