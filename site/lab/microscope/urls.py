from django.urls import path

from lab.microscope import views

urlpatterns = [
    path("runs/<str:run_id>/steps/", views.steps, name="steps"),
    path("runs/<str:run_id>/trace/", views.trace, name="trace"),
]
