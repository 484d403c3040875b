"""PyTorch's dispatcher sends convolutions here: routing, the engine behind it, background autotuning."""
