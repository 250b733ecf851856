from django.urls import path

from lab.form import views

urlpatterns = [
    path("", views.home, name="home"),
    path("engine/", views.engine, name="engine"),
    path("estimate/", views.estimate, name="estimate"),
]
