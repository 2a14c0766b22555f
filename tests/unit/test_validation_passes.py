"""Files of recurrent layers and convolutions: each stated pass is a row, compared by its algorithm."""

from __future__ import annotations

import pytest

from weft.graph import Recurrent
from weft.lab import validate

RNN = "gpu,dtype,cell,hidden,batch,timesteps,forward_us,backward_data_us,backward_weights_us,source,notes\n"
CONV = (
    "gpu,dtype,batch,in_channels,height,width,out_channels,filter_height,filter_width,pad_height,pad_width,"
    "stride_height,stride_width,forward_us,backward_data_us,backward_weights_us,forward_algorithm,source,notes\n"
)


def test_every_stated_pass_of_a_layer_is_compared(tmp_path):
    from weft.estimate import estimate

    forward = estimate(Recurrent("gru", 2560, 32, 375, dtype="fp32"), "v100").seconds * 1e6
    rows = [f"v100-sxm2,fp32,gru,2560,32,375,{forward:.6g},{forward:.6g},,here,", "v100-sxm2,fp32,srnn,8,8,8,9,9,9,,"]
    (tmp_path / "rnn.csv").write_text(RNN + "\n".join(rows) + "\n")
    found = validate(tmp_path)
    (part,) = found.predictions
    assert part.subject.labels["pass"].tolist() == ["forward", "data"]
    assert part.seconds[0] == pytest.approx(forward * 1e-6)
    assert "cell 'srnn': Weft knows no such cell; it knows vanilla, lstm, gru" in found.complaints()[0]


def test_a_pass_that_cannot_be_right_leaves_the_others_in(tmp_path):
    (tmp_path / "rnn.csv").write_text(RNN + "v100-sxm2,fp32,lstm,4096,128,25,31169,10,28487,here,\n")
    found = validate(tmp_path)
    assert found.predictions[0].subject.labels["pass"].tolist() == ["forward", "weights"]
    assert len(found.problems) == 1


def test_a_slow_kernel_beside_others_of_its_line_is_no_error_of_the_unit(tmp_path):
    """cuDNN 6 took 8411 us for the data gradient of a strided 1 x 1 convolution in fp16 on a P100, forward 45 us."""
    shape = "p100-pcie,fp16,8,64,56,56,256,1,1,0,0,2,2"
    lines = [f"{shape},45,8411,222,IMPLICIT_PRECOMP_GEMM,here,", f"{shape},45000,,,IMPLICIT_PRECOMP_GEMM,here,"]
    (tmp_path / "conv.csv").write_text(CONV + "\n".join(lines) + "\n")
    found = validate(tmp_path)
    assert found.predictions[0].subject.labels["pass"].tolist() == ["forward", "data", "weights"]
    assert [one for one in found.complaints() if "looks like nanoseconds" in one]
    assert len(found.problems) == 1


def test_convolutions_are_compared_by_their_algorithm(tmp_path):
    rows = [
        "v100-sxm2,fp32,16,32,12,120,64,3,3,1,1,1,1,62,63,128,WINOGRAD,here,",
        "vega-fe,fp32,16,32,12,120,64,5,5,1,1,2,2,300,,,ConvolutionFwdAlgoWinograd,here,",
        "v100-sxm2,fp32,16,32,12,120,64,3,3,1,1,1,1,62,63,128,MAGIC,here,",
    ]
    (tmp_path / "conv.csv").write_text(CONV + "\n".join(rows) + "\n")
    found = validate(tmp_path)
    labels = {part.subject.machine: part.subject.labels["algorithm"].tolist() for part in found.predictions}
    assert labels == {"v100-sxm2-32gb": ["winograd"] * 3, "vega-fe": ["gemm"]}
    assert any("forward_algorithm 'MAGIC': Weft knows no such algorithm" in one for one in found.complaints())
