from django.urls import path

from lab.compare import views

urlpatterns = [
    path("compare/", views.compare, name="compare"),
    path("compare/live/", views.live, name="compare-live"),
    path("compare/cell/", views.cell, name="compare-cell"),
    path("compare/maps/<str:map_name>.png", views.picture, name="compare-picture"),
    path("compare/flip/", views.flip, name="flip"),
    path("compare/elsewhere/", views.elsewhere, name="elsewhere"),
    path("compare/conventions/", views.conventions, name="conventions"),
]
