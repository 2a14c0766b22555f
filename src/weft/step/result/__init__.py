"""The answers of a training step, a prefill and a decode iteration: time, memory, roofline."""
