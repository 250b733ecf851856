from django.urls import path

from lab.sharing import views

urlpatterns = [
    path("runs/<str:run_id>/files/<str:name>", views.file, name="file"),
    path("runs/<str:run_id>.npz", views.whole, {"form": "npz"}, name="npz"),
    path("runs/<str:run_id>.safetensors", views.whole, {"form": "safetensors"}, name="safetensors"),
    path("runs/<str:run_id>/<str:map_name>.svg", views.drawing, name="map"),
    path("runs/<str:run_id>/embed/", views.embed, name="embed"),
    path("history/", views.past, name="history"),
    path("history/forget/", views.forget, name="forget"),
]
