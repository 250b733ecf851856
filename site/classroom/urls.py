from django.urls import path, re_path

from classroom import recipes
from classroom.accounts import views as accounts
from classroom.authoring import views as authoring
from classroom.checks import views as checks
from classroom.students import views as students
from classroom.teaching import regrades, views, ways_in, webhooks

SUBMISSION = "hand-in/<str:assignment_id>/submissions/<str:submission_id>"
ASSIGNMENT = "classroom/assignments/<str:assignment_id>"

app_name = "classroom"
urlpatterns = [
    path("account/sign-in/", accounts.sign_in, name="sign-in"),
    path("account/sign-up/", accounts.sign_up, name="sign-up"),
    path("account/sign-out/", accounts.sign_out, name="sign-out"),
    path("account/password/", accounts.password, name="password"),
    path("account/tokens/", accounts.tokens, name="tokens"),
    path("account/tokens/<int:token_id>/revoke/", accounts.revoke, name="revoke"),
    path("recipes/", recipes.page, name="recipes"),
    path("problems/", checks.problems, name="problems"),
    path("problems/<slug:slug>/", checks.problem, name="problem"),
    path("problems/<slug:slug>/check/", checks.check, name="check"),
    path("hand-in/<str:assignment_id>/", students.hand_in, name="hand-in"),
    path(f"{SUBMISSION}/", students.submission, name="submission"),
    path(f"{SUBMISSION}/live/", students.live, name="submission-live"),
    path(f"{SUBMISSION}/take-back/", students.take_back, name="submission-take-back"),
    path(f"{SUBMISSION}/lab/", students.open_in_lab, name="submission-lab"),
    path("classroom/", views.home, name="home"),
    path("classroom/problems/new/", authoring.new, name="problem-new"),
    path("classroom/problems/preview/", authoring.preview, name="problem-preview"),
    path("classroom/problems/<slug:slug>/", authoring.problem, name="problem-mine"),
    path("classroom/problems/<slug:slug>/edit/", authoring.edit, name="problem-edit"),
    path("classroom/problems/<slug:slug>/live/", authoring.live, name="problem-live"),
    path("classroom/problems/<slug:slug>/publish/", authoring.publish, name="problem-publish"),
    path("classroom/assignments/new/", views.assign, name="assign"),
    path(f"{ASSIGNMENT}/", views.dashboard, name="assignment"),
    path(f"{ASSIGNMENT}/settings/", views.settings, name="assignment-settings"),
    path(f"{ASSIGNMENT}/publish-grades/", views.publish_grades, name="publish-grades"),
    re_path(
        r"^classroom/assignments/(?P<assignment_id>\w+)/grades\.(?P<form>csv|json)$",
        views.grades_file,
        name="grades-file",
    ),
    path(f"{ASSIGNMENT}/student/", views.student, name="assignment-student"),
    path(f"{ASSIGNMENT}/submissions/<str:submission_id>/", views.submission, name="assignment-submission"),
    path(f"{ASSIGNMENT}/submissions/<str:submission_id>/lab/", views.open_in_lab, name="assignment-lab"),
    path(f"{ASSIGNMENT}/ways-in/", ways_in.links, name="ways-in"),
    path(f"{ASSIGNMENT}/ways-in/revoke/", ways_in.revoke_link, name="revoke-link"),
    path(f"{ASSIGNMENT}/ways-in/token/", ways_in.make_token, name="make-token"),
    path(f"{ASSIGNMENT}/regrades/", regrades.regrades, name="regrades"),
    path(f"{ASSIGNMENT}/regrades/<str:regrade_id>/", regrades.regrade, name="regrade"),
    path(f"{ASSIGNMENT}/regrades/<str:regrade_id>/live/", regrades.live, name="regrade-live"),
    path("classroom/webhooks/", webhooks.webhooks, name="webhooks"),
    path("classroom/webhooks/<str:webhook_id>/", webhooks.webhook, name="webhook"),
    path("classroom/webhooks/<str:webhook_id>/delete/", webhooks.delete, name="webhook-delete"),
    path(
        "classroom/webhooks/<str:webhook_id>/deliveries/<str:delivery_id>/replay/",
        webhooks.replay,
        name="webhook-replay",
    ),
]
