from .libraries import from_library as from_library
from .recognition import adopt as adopt
from .wrapper import AdoptionError as AdoptionError
