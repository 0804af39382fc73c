# transformers, RecurrentGemma: the state is in the module, so one conversation continues another
import torch
from transformers import DynamicCache, RecurrentGemmaConfig, RecurrentGemmaForCausalLM

torch.manual_seed(0)
sizes = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 3, "intermediate_size": 96, "lru_width": 32}
config = RecurrentGemmaConfig(**sizes, num_attention_heads=4, num_key_value_heads=1, attention_window_size=64)
model, a, b = RecurrentGemmaForCausalLM(config).eval(), torch.randint(1, 64, (1, 9)), torch.randint(1, 64, (1, 8))
with torch.no_grad():
    whole = model(a, use_cache=False).logits[:, 8]
    for other in (None, b):
        cache = DynamicCache(config=config)
        model(a[:, :8], past_key_values=cache, use_cache=True)
        if other is not None:  # somebody else's text, with a cache of its own
            model(other, past_key_values=DynamicCache(config=config), use_cache=True)
        step = model(a[:, 8:], past_key_values=cache, use_cache=True).logits[:, 0]
        meanwhile = "nothing" if other is None else "b"
        print(f"the ninth token of a, {meanwhile} read meanwhile: off by {(step - whole).abs().max():.1e}")
