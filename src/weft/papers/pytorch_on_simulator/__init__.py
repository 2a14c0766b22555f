"""PyTorch on a GPU simulator (arXiv:1811.08933): captured programs, operator by operator in the engine."""

from weft.papers.pytorch_on_simulator.study import STUDY, PyTorchOnSimulatorStudy, run

__all__ = ["STUDY", "PyTorchOnSimulatorStudy", "run"]
