"""Plans one operator call at a time: a request becomes the call that computes it, or the reason why PyTorch's kernel
does. The adapter for tensors of a new device belongs in this package.

- ``bias_gradient``: a bias' gradient.
- ``opencl_tensors``: tensors of that device.
- ``planning``: chooses among them, and says why not.
- ``stream_tensors``: tensors on PyTorch's current stream of a device.
"""
