"""The lab's addresses, part by part: each folder has its own. All are reversed as `lab:<name>`."""

from django.urls import include, path

app_name = "lab"
urlpatterns = [
    path("", include("lab.form.urls")),
    path("", include("lab.runs.urls")),
    path("", include("lab.compare.urls")),
    path("", include("lab.sweeps.urls")),
    path("", include("lab.microscope.urls")),
    path("", include("lab.sources.urls")),
    path("", include("lab.sharing.urls")),
]
