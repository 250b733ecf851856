from django.apps import AppConfig


class ApiConfig(AppConfig):
    name = "api"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from api import housekeeping
        from workers import signals

        signals.housekeeping.connect(lambda **_: housekeeping.expire(), weak=False, dispatch_uid="api")
