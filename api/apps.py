from django.apps import AppConfig


class ApiConfig(AppConfig):
    name = "api"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from api import checks, housekeeping  # noqa: F401  (registers the start-up check)
        from workers import signals

        signals.housekeeping.connect(lambda **_: housekeeping.expire(), weak=False, dispatch_uid="api")
