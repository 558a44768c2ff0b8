from .serving import Limits as Limits
from .serving import create_server as create_server
from .serving import serve as serve
