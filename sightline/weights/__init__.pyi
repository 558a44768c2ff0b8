from .loading import load as load
from .published import Weights as Weights
from .published import add_weights as add_weights
from .published import zoo as zoo
from .report import Report as Report
from .report import WeightsError as WeightsError
from .saving import convert as convert
from .saving import save as save
