"""Floor 2: the run row and its life, and the Celery processes that carry it out."""

from workers.celery import app as celery_app

__all__ = ["celery_app"]
