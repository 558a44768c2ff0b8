from .source import model_names as model_names
from .source import open_model as open_model
from .switches import switch_off as switch_off
