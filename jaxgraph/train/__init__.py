"""Training, evaluation and prediction on sharded graphs."""

from jaxgraph.run_log import read_log
from jaxgraph.train.checkpoints import Checkpoints, load_checkpoint
from jaxgraph.train.classification import NodeClassification
from jaxgraph.train.epoch_log import EpochLog
from jaxgraph.train.fit import fit
from jaxgraph.train.fit_state import FitState, abstract_fit_state, initial_state
from jaxgraph.train.history import (
    DivergenceError,
    EpochRecord,
    History,
    Measured,
    Move,
    TrainingInterrupted,
)
from jaxgraph.train.link_prediction import LinkPrediction
from jaxgraph.train.link_ranks import link_ranks
from jaxgraph.train.masked_labels import MaskedLabelPrediction
from jaxgraph.train.passes import compile_inference, evaluate, loss_and_grad, predict
from jaxgraph.train.regression import NodeRegression
from jaxgraph.train.smoothing import correct_and_smooth, label_propagation
from jaxgraph.train.step import compile_train_step
from jaxgraph.train.task import Task, split_mask

__all__ = [
    "Checkpoints",
    "DivergenceError",
    "EpochLog",
    "EpochRecord",
    "FitState",
    "History",
    "LinkPrediction",
    "MaskedLabelPrediction",
    "Measured",
    "Move",
    "NodeClassification",
    "NodeRegression",
    "Task",
    "TrainingInterrupted",
    "abstract_fit_state",
    "compile_inference",
    "compile_train_step",
    "correct_and_smooth",
    "evaluate",
    "fit",
    "initial_state",
    "label_propagation",
    "link_ranks",
    "load_checkpoint",
    "loss_and_grad",
    "predict",
    "read_log",
    "split_mask",
]


def __dir__() -> list[str]:
    return sorted(__all__)
