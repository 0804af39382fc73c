# transformers, Bamba: positions begin again at 0 with each call, unless the caller counts them
import torch
from transformers import BambaConfig, BambaForCausalLM

torch.manual_seed(0)
sizes = {
    "vocab_size": 64,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "intermediate_size": 64,
    "attn_layer_indices": [1],
}
heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 8}
model, x = (
    BambaForCausalLM(BambaConfig(**sizes, **heads, mamba_n_groups=2, mamba_chunk_size=8)).eval(),
    torch.randint(1, 64, (1, 9)),
)
with torch.no_grad():
    whole = model(x, use_cache=False).logits[:, 8]
    for more in ({}, {"position_ids": torch.tensor([[8]])}):
        cache = model(x[:, :8], use_cache=True).past_key_values
        step = model(x[:, 8:], past_key_values=cache, use_cache=True, **more).logits[:, 0]
        print(f"the ninth token, {'positions given' if more else 'as it is'}: off by {(step - whole).abs().max():.1e}")
