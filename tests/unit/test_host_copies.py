"""Host copies beside a collective: what they leave of a GPU's PCIe port and of its memory."""

import pytest
from click.testing import CliRunner

from weft import hardware
from weft.cli.main import weft as cli
from weft.core.errors import InputError
from weft.hardware.host_copies import beside_host_copies

GB = 1e9


def network(system):
    return system.node.network.bandwidth / GB


@pytest.mark.parametrize(("rate", "left"), [(10, 50), (13, 50), (20, 43), (31.5, 31.5), (63, 31.5)])
def test_adapter_and_copies_share_the_port_of_a_gpu_fairly(rate, left):
    on = hardware.system("dgx-h100").with_gpus(16)  # 63 GB/s to the host, adapters of 50 GB/s
    found = beside_host_copies(on, rate * GB, 16, 2)
    assert network(found.system) == pytest.approx(left)
    assert found.system.gpu.memory.bandwidth == pytest.approx(on.gpu.memory.bandwidth - rate * GB)
    assert ("which carries both" in found.why) == (left == 50)


def test_peers_over_pcie_get_half_of_the_port_beside_copies_that_fill_it():
    on = hardware.system("pcie-a100")
    found = beside_host_copies(on, on.gpu.host.bandwidth, 8, 1)
    alone = on.gpu.host.bandwidth * on.node.path_share(8)
    assert found.system.gpu.host.bandwidth * on.node.path_share(8) == pytest.approx(
        min(alone, on.gpu.host.bandwidth / 2)
    )


@pytest.mark.parametrize("name", ["dgx-1", "dgx-h100", "mi300x-x8"])
def test_links_of_their_own_carry_no_copies(name):
    on = hardware.system(name)
    found = beside_host_copies(on, 10 * GB, on.gpus, 1)
    assert "no link carries both" in found.why
    assert found.system.gpu.link == on.gpu.link


@pytest.mark.parametrize("rate", [0.0, -1.0, 64 * GB])
def test_a_rate_that_the_port_cannot_carry_is_refused(rate):
    with pytest.raises(InputError, match="in one direction; give a rate above zero"):
        beside_host_copies(hardware.system("dgx-h100"), rate, 8, 1)


def test_the_command_says_what_copies_cost():
    words = ["predict", "collective", "all_gather:256MiB", "--ranks", "16", "--system", "dgx-h100"]
    said = CliRunner().invoke(cli, [*words, "--host-copies", "50 GB/s"])
    assert said.exit_code == 0
    assert said.output.startswith("Beside host copies of 50 GB/s on each GPU of dgx-h100 it takes 1.142 ms instead of")
    assert "host copies" not in CliRunner().invoke(cli, words).output
