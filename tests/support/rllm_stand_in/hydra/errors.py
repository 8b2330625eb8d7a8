"""Hydra's errors."""


class HydraException(Exception):
    pass


class ConfigCompositionException(HydraException):
    pass
