from django.urls import path

from lab.microscope import compileviews, tileviews, views

urlpatterns = [
    path("runs/<str:run_id>/steps/", views.steps, name="steps"),
    path("runs/<str:run_id>/trace/", views.trace, name="trace"),
    path("runs/<str:run_id>/tiles/", tileviews.of_run, name="run-tiles"),
    path("tiles/", tileviews.free, name="tiles"),
    path("compiled/", compileviews.home, name="compiled"),
    path("compiled/<str:run_id>/", compileviews.one, name="compilation"),
    path("compiled/<str:run_id>/code/", compileviews.code_of, name="code"),
    path("compiled/<str:run_id>/files/<str:name>", compileviews.file, name="compiled-file"),
]
