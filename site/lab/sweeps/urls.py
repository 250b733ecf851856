from django.urls import path

from lab.sweeps import views

urlpatterns = [
    path("sweeps/new/", views.new, name="new_sweep"),
    path("sweeps/new/check/", views.check, name="check_sweep"),
    path("sweeps/<str:sweep_id>/", views.sweep, name="sweep"),
    path("sweeps/<str:sweep_id>/live/", views.live, name="live_sweep"),
    path("sweeps/<str:sweep_id>/cancel/", views.cancel, name="cancel_sweep"),
    path("sweeps/<str:sweep_id>/<str:quantity>.svg", views.plot, name="sweep_plot"),
    path("sweeps/<str:sweep_id>.json", views.document, name="sweep_json"),
    path("sweeps/<str:sweep_id>.csv", views.table, name="sweep_csv"),
]
