from django.urls import path

from concepts import views

app_name = "concepts"
urlpatterns = [
    path("", views.home, name="home"),
]
