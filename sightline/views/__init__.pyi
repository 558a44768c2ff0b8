from .drawing import draw as draw
from .drawing import save_figure as save_figure
