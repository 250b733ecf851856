from django.urls import path

from lab.sources import views

urlpatterns = [
    path("kernels/", views.index, name="kernels"),
    path("kernels/<slug:slug>/", views.kernel, name="kernel"),
]
