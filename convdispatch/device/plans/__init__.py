"""Plans made of steps, and launches for norms before a convolution and sums of channels behind it."""
