"""What all tests share: hypothesis sets no time limits, as machines differ and are not quiet."""

from hypothesis import HealthCheck, settings

settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")
