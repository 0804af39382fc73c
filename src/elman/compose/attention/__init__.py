"""Decoders that read a memory: attention, and a fixed vector at every step.

    a[j] = softmax over j < lengths of e[j],   c = sum over j of a[j] m[j]            m (S, M) the memory of a row

    Additive    e[j] = v . tanh(Q h' + K m[j] + k)     before the recurrence, on the state before (Bahdanau, 2015)
                h = core([x, c], h')                   y = tanh(O [h, c, x] + o)
    Luong       h = core(x, h'), or core([x, y'], h') with `feeding`                        (Luong et al., 2015)
                e[j] = h . m[j] (dot) or h . (K m[j]) (general)      y = tanh(O [h, c] + o)
    Fixed       h = core([x, m[0]], h')                y = h

The memory is bound, not carried: `decoder.given(memory, lengths)` is a Core like any other, for as many rows as the
memory has. `take` and `repeat` of it follow those of its state. A memory of length 0 gives c = 0.

D. Bahdanau, K. Cho, Y. Bengio, Neural machine translation by jointly learning to align and translate, ICLR (2015).
M.-T. Luong, H. Pham, C. D. Manning, Effective approaches to attention-based neural machine translation, EMNLP (2015).
"""

from elman.compose.attention.bound import Bound, Covered, Covering, Decoder, Memory
from elman.compose.attention.decoders import SCORES, Additive, Fixed, Layers, Luong, Remember

__all__ = [
    "SCORES", "Additive", "Bound", "Covered", "Covering", "Decoder", "Fixed", "Layers", "Luong", "Memory", "Remember",
]  # fmt: skip
