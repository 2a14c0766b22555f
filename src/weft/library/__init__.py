"""What a vendor's library would choose: algorithm, protocol, channels, tiles; and what its kernels cost."""
