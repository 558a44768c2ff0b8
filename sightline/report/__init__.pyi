from .write import write_report as write_report
