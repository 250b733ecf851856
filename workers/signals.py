"""What the floors above may listen to."""

from django.dispatch import Signal

housekeeping = Signal()  # sent every hour in the maintenance worker: delete what you kept long enough
