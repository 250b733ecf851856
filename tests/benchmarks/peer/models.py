from django.db import models


class Job(models.Model):  # noqa: DJ008  (bare on purpose)
    question = models.FloatField()
    answer = models.FloatField(null=True)
