"""The web process. It must never import torch or triton (a test asserts it)."""

import os

from django.core.management.base import BaseCommand
from django.core.wsgi import get_wsgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
# Before numpy is loaded. Threads of a request already share the cores; products of matrices in as many
# threads again wait for one another, ten times longer than they compute.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

application = get_wsgi_application()
BaseCommand().check()  # manage.py and Celery run the start-up checks by themselves; a WSGI server does not
