from .errors import AdoptionError as AdoptionError
from .recognition import adopt as adopt
