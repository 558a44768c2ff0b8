from .claims import verdicts as verdicts
from .demo import Demo as Demo
from .verdict import Effect as Effect
from .verdict import Verdict as Verdict
