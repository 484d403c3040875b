from ..calls.framework.fallback import Enabled as Enabled
from .calls import counters as counters
from .calls import reset_counters as reset_counters
from .primitive import conv_general_dilated as conv_general_dilated
from .primitive import disable as disable
from .primitive import enable as enable
