# transformers, xLSTM: the attention mask is not looked at
import torch
from transformers import xLSTMConfig, xLSTMForCausalLM

torch.manual_seed(0)
config = xLSTMConfig(vocab_size=64, hidden_size=128, embedding_dim=128, num_hidden_layers=2, num_heads=4, chunk_size=8)
model, x = xLSTMForCausalLM(config).eval(), torch.randint(1, 64, (1, 12))
padded, mask = torch.cat([torch.zeros(1, 4).long(), x], 1), torch.tensor([[0] * 4 + [1] * 12])
with torch.no_grad():
    alone, masked = model(x).logits, model(padded, attention_mask=mask).logits[:, 4:]
print(f"behind four tokens of padding: off by {(masked - alone).abs().max():.1e}")
