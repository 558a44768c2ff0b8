from .edits import edit_image as edit_image
from .launch import open_app as open_app
from .serving import Limits as Limits
from .serving import create_server as create_server
from .serving import serve as serve
