from django.urls import path

from lab.microscope import tileviews, views

urlpatterns = [
    path("runs/<str:run_id>/steps/", views.steps, name="steps"),
    path("runs/<str:run_id>/trace/", views.trace, name="trace"),
    path("runs/<str:run_id>/tiles/", tileviews.of_run, name="run-tiles"),
    path("tiles/", tileviews.free, name="tiles"),
]
