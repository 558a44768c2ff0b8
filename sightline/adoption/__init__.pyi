from .errors import AdoptionError as AdoptionError
from .libraries import from_library as from_library
from .recognition import adopt as adopt
