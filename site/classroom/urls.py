from django.urls import path

from classroom.accounts import views as accounts

app_name = "classroom"
urlpatterns = [
    path("account/sign-in/", accounts.sign_in, name="sign-in"),
    path("account/sign-up/", accounts.sign_up, name="sign-up"),
    path("account/sign-out/", accounts.sign_out, name="sign-out"),
    path("account/password/", accounts.password, name="password"),
    path("account/tokens/", accounts.tokens, name="tokens"),
    path("account/tokens/<int:token_id>/revoke/", accounts.revoke, name="revoke"),
    path("classroom/", accounts.home, name="home"),
]
