from django.urls import path, register_converter

from concepts import views
from concepts.changes import Changes


class Form:
    regex = "html|json|svg"

    def to_python(self, value: str) -> str:
        return value

    def to_url(self, value: str) -> str:
        return value


register_converter(Form, "form")

app_name = "concepts"
urlpatterns = [
    path("", views.home, name="home"),
    path("figure/<slug:name>.<form:form>", views.figure, name="home-figure"),
    path("changes/", views.changes_page, name="changes"),
    path("changes.atom", Changes(), name="changes-feed"),
    path("paths/", views.paths_page, name="paths"),
    path("paths/<slug:slug>/", views.path_page, name="path"),
    path("concepts/all/", views.whole_book, name="whole"),
    path("concepts/<slug:slug>/", views.concept, name="concept"),
    path("concepts/<slug:slug>/figure/<slug:name>.<form:form>", views.figure, name="figure"),
]
