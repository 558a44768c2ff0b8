"""The compute of pre-training in core-days, the unit of the ViT paper's table 2: cores times days."""

import math


def core_days(cores: float, days: float) -> float:
    """Compute of a training in core-days.

    >>> sl.references.core_days(cores=8, days=28.75)
    230.0
    """
    return _positive("cores", cores) * _positive("days", days)


def days_on(cores: float, core_days: float) -> float:
    """Days that so many core-days take on so many cores; "about 30 days" for ViT-L/16 on eight (ViT, section 4.2).

    >>> cost = sl.references.find("vit-2", model="vit-l16", pretraining="imagenet-21k", metric="TPUv3-core-days")[0]
    >>> sl.references.days_on(8, cost.value)
    28.75
    """
    return _positive("core_days", core_days) / _positive("cores", cores)


def _positive(name: str, value: float) -> float:
    if isinstance(value, bool) or not math.isfinite(value) or value <= 0:
        raise ValueError(f"{name} must be a number above 0; got {value!r}.")
    return value
