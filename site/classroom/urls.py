from django.urls import path

from classroom.accounts import views as accounts
from classroom.students import views as students

SUBMISSION = "hand-in/<str:assignment_id>/submissions/<str:submission_id>"

app_name = "classroom"
urlpatterns = [
    path("account/sign-in/", accounts.sign_in, name="sign-in"),
    path("account/sign-up/", accounts.sign_up, name="sign-up"),
    path("account/sign-out/", accounts.sign_out, name="sign-out"),
    path("account/password/", accounts.password, name="password"),
    path("account/tokens/", accounts.tokens, name="tokens"),
    path("account/tokens/<int:token_id>/revoke/", accounts.revoke, name="revoke"),
    path("classroom/", accounts.home, name="home"),
    path("hand-in/<str:assignment_id>/", students.hand_in, name="hand-in"),
    path(f"{SUBMISSION}/", students.submission, name="submission"),
    path(f"{SUBMISSION}/live/", students.live, name="submission-live"),
    path(f"{SUBMISSION}/take-back/", students.take_back, name="submission-take-back"),
    path(f"{SUBMISSION}/lab/", students.open_in_lab, name="submission-lab"),
]
