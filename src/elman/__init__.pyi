"""The public names of Elman, listed once. Type checkers read this; `__init__.py` imports a name when it is used."""

from elman import cells as cells
from elman import compose as compose
from elman import data as data
from elman import decoding as decoding
from elman import errors as errors
from elman import hmm as hmm
from elman import kernels as kernels
from elman import laws as laws
from elman import lens as lens
from elman import state as state
from elman import tasks as tasks
from elman import training as training
from elman import trees as trees
from elman.cells import CELLS as CELLS
from elman.cells import cell as cell
from elman.compose import Bidirectional as Bidirectional
from elman.compose import Dense as Dense
from elman.compose import Dropout as Dropout
from elman.compose import Norm as Norm
from elman.compose import Parallel as Parallel
from elman.compose import Pool as Pool
from elman.compose import Recompute as Recompute
from elman.compose import Residual as Residual
from elman.compose import Reverse as Reverse
from elman.compose import Stack as Stack
from elman.compose import WeightDrop as WeightDrop
from elman.compose import Zoneout as Zoneout
from elman.compose import stack as stack
from elman.convert import from_torch as from_torch
from elman.convert import to_torch as to_torch
from elman.core import Core as Core
from elman.errors import ElmanError as ElmanError
from elman.estimators import SequenceClassifier as SequenceClassifier
from elman.estimators import SequenceRegressor as SequenceRegressor
from elman.model import SequenceModel as SequenceModel
from elman.run import train as train
from elman.stream import Stream as Stream
from elman.tasks import load as load
from elman.tasks.text.lm import LanguageModel as LanguageModel
from elman.tasks.text.lm import LMConfig as LMConfig

__version__: str
