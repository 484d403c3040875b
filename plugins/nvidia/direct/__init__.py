"""1x1 kernels as products of matrices that lie in memory already, split in registers: ``nvidia.direct``."""
