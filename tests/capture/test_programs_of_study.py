"""The graphs that the study of PyTorch on a simulator ships are what unmodified PyTorch does."""

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed; make test-capture runs this")
pytest.importorskip("transformers", reason="transformers is not installed; make test-capture runs this")
from programs_of_study import PROGRAMS

from weft.papers.pytorch_on_simulator.study import program


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_shipped_program_is_the_captured_one(name):
    shipped, captured = program(name), PROGRAMS[name]()
    assert [(node.id, node.op, node.inputs, node.outputs, node.phase) for node in shipped] == [
        (node.id, node.op, node.inputs, node.outputs, node.phase) for node in captured
    ]
    assert shipped.tensors == captured.tensors
