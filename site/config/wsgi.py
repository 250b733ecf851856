"""The web process. It must never import torch or triton (a test asserts it)."""

import os

from django.core.management.base import BaseCommand
from django.core.wsgi import get_wsgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")

application = get_wsgi_application()
BaseCommand().check()  # manage.py and Celery run the start-up checks by themselves; a WSGI server does not
