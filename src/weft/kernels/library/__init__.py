"""The choices of a vendor's library: algorithm, protocol, channels and tiles, and the cost of its kernels."""
