from django.urls import path

from lab.runs import views

urlpatterns = [
    path("runs/<str:run_id>/", views.run, name="run"),
    path("runs/<str:run_id>/live/", views.live, name="live"),
    path("runs/<str:run_id>/look/", views.look_at, name="look"),
    path("runs/<str:run_id>/closeup/", views.closeup, name="closeup"),
    path("runs/<str:run_id>/cell/", views.cell, name="cell"),
    path("runs/<str:run_id>/maps/<str:map_name>.png", views.picture, name="picture"),
    path("runs/<str:run_id>/cancel/", views.cancel, name="cancel"),
    path("runs/<str:run_id>.json", views.document, name="json"),
]
