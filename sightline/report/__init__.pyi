from .atlas.page import write_atlas as write_atlas
from .demo import DemoReport as DemoReport
from .demo import run_demo as run_demo
from .notebook import to_html as to_html
from .write import write_report as write_report
