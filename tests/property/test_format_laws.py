"""Laws of block formats, for any tensor."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from weft.kernels.formats import FORMATS

TENSORS = arrays.arrays(
    np.float32, (2, 32), elements=st.floats(-(2.0**100), 2.0**100, width=32, allow_nan=False, allow_infinity=False)
)
STEPS = {"mx9": 2**-7, "mx6": 2**-4, "mx4": 2**-2, "mxfp8": 2**-3, "mxfp4": 2**-2, "nvfp4": 0.5}
"""Largest error of any value, of its block's (for NVFP4 its tensor's) largest: half a unit, or what saturates."""


@given(TENSORS, st.sampled_from(sorted(FORMATS)))
def test_no_value_is_off_by_more_than_the_step_of_its_block(values, name):
    used = FORMATS[name]
    read = used.encode(values).decode().astype(np.float64)
    blocks = np.abs(values.astype(np.float64)).reshape(2, -1, used.block)
    top = (blocks.max(axis=-1, keepdims=True) if name != "nvfp4" else blocks.max()) + np.zeros_like(blocks)
    error = np.abs(read - values).reshape(blocks.shape)
    assert (error <= STEPS[name] * top + 2.0**-126).all()


@given(TENSORS, st.sampled_from(sorted(FORMATS)))
def test_a_decoded_tensor_of_shared_exponents_encodes_to_itself(values, name):
    used = FORMATS[name]
    once = used.encode(values).decode()
    if name.startswith("mx") and "fp" not in name:
        assert np.array_equal(used.encode(once).decode(), once)
    assert np.array_equal(np.sign(once) * np.sign(values) >= 0, np.ones(values.shape, bool))
