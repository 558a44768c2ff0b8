"""The error of a module that cannot be adopted."""


class AdoptionError(ValueError):
    """A module that cannot be adopted, in one sentence: what was found, what was expected, what to do.

    >>> issubclass(sl.adoption.AdoptionError, ValueError)
    True
    """
