"""Convolutions as products of spectra for GPUs, in portable OpenCL C 1.2."""
