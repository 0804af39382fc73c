"""A task of one's own: are there more ones than zeros in a sequence of bits?"""

from dataclasses import dataclass

import torch

import elman
from elman.data import Examples, OrderedBatches, Shuffled
from elman.nn.embed import Embedding
from elman.nn.readout import Pooled, Softmax
from elman.tables import Table
from elman.tasks import TASKS, Data, Evaluation, Predictor, Request, Task
from elman.tasks.predictor import evaluating
from elman.tasks.request import Rows, data_option
from elman.tasks.task import TrainedSettings
from elman.training.scores import Scores


@dataclass(frozen=True)
class CounterConfig(TrainedSettings):  # the settings of a run; each field becomes a flag
    task: str = "bits"
    out: str = "runs/bits"


def synthetic(n, seed):
    """Rows of 1 to 15 bits, and whether ones are in the majority."""
    generator = torch.Generator().manual_seed(seed)
    x = [torch.randint(0, 2, (1 + 2 * (i % 8),), generator=generator) for i in range(n)]
    return Examples(x, torch.tensor([int(2 * row.sum() > len(row)) for row in x]))


class Bits(Data):  # what is trained and evaluated on
    def __init__(self, seed):
        self.train, self.valid, self.seed, self.fingerprint = synthetic(200, seed), synthetic(64, seed + 1), seed, {}

    def batches(self, rank, world):
        order = Shuffled(len(self.train), 16, self.seed, rank, world)
        return OrderedBatches(order, lambda rows, position: self.train.batch(rows))


class Counter(Predictor):  # what users hold
    task = "bits"

    @classmethod
    def network(cls):
        core = elman.Stack(elman.Bidirectional(*(elman.cell("gru", 4, 8) for _ in "ab")), elman.Pool("mean", 16))
        return elman.SequenceModel(Embedding(2, 4, dropout=0.1), core, Pooled(Softmax(core.output_size, 2)))

    @classmethod
    def parts(cls, content):  # what the constructor takes besides the network: here nothing
        return ()

    def describe(self):
        return [Table("a counter", ["units"], [["8"]])]

    @torch.inference_mode()
    def most(self, bits):
        with evaluating(self.model):
            return int(self.model.scan(torch.tensor([[*map(int, bits)]]))[0].mode)


@dataclass(frozen=True)
class Predict(Request):  # what a verb takes; flags, keywords in Python and the HTTP body are made of it
    data: Rows = data_option("a row of bits", rows=list[int])


def predict(counter, request):
    return [f"{counter.most(bits)}\n" for bits in request.data]


def evaluate(counter, request):
    return task.evaluate(counter, synthetic(99, 77)).scores


class BitsTask(Task):
    Config, Model, title = CounterConfig, Counter, "a counter of bits"
    requests = {"predict": (Predict, predict), "evaluate": (Predict, evaluate)}

    def open(self, config, saved):
        return Bits(config.seed)

    def build(self, config, data):
        return Counter(Counter.network())

    def evaluate(self, counter, part):
        right = sum(counter.most(x) == y for x, y in zip(part.x, part.y.tolist(), strict=True))
        return Evaluation(Scores({"accuracy": right / len(part)}, "accuracy", larger_is_better=True))


task = TASKS["bits"] = BitsTask()
