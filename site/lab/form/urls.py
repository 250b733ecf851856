from django.urls import path

from lab.form import views

urlpatterns = [
    path("", views.home, name="home"),
    path("engine/", views.engine, name="engine"),
    path("inputs/", views.inputs, name="inputs"),
    path("estimate/", views.estimate, name="estimate"),
    path("presets/", views.presets, name="presets"),
]
