from .atlas import write_atlas as write_atlas
from .demo import DemoReport as DemoReport
from .demo import run_demo as run_demo
from .write import write_report as write_report
