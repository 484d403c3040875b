"""The device's self-test: every kernel of the framework and every solver on sizes that compilers get wrong.

A compiler that makes vectors of a kernel makes a second form of it for what is left over, and on one of its targets
either may be wrong. So each operation runs at widths from 1 to 35 and is compared with NumPy's float64.
"""
