from .draw import draw as draw
from .draw import save_figure as save_figure
