# transformers, RWKV-4: one token for each of two rows gives two for each
import torch
from transformers import RwkvConfig, RwkvForCausalLM

torch.manual_seed(0)
model = RwkvForCausalLM(RwkvConfig(vocab_size=64, hidden_size=32, num_hidden_layers=2)).eval()
x = torch.randint(0, 64, (2, 9))
with torch.no_grad():
    state = model(x[:, :8], use_cache=True).state
    step = model(x[:, 8:], state=state, use_cache=True).logits
print(f"one token for each of two rows: outputs of shape {list(step.shape)}")
