from ..device.cuda.bridge import Bridge as Bridge
from ..device.cuda.bridge import Operand as Operand
from ..device.cuda.bridge import bridge_of as bridge_of
from ..device.cuda.bridge import enqueue_across as enqueue_across
from ..device.cuda.stream import CudaStream as CudaStream
from ..device.cuda.stream import address_of as stream_address
from ..device.cuda_driver import cuda_of as cuda_of
from ..device.cuda_driver import unavailable as cuda_unavailable
from ..device.memory.shared_pool import cuda_address as cuda_address
from ..device.runtime import cuda_devices as cuda_devices

# Names that are others at home; a checker takes the rest from the form ``X as X``.
__all__ = ["cuda_unavailable", "stream_address"]
