"""Every address below /api/v1/. Without a last slash, but for the index and the two documents meant for
browsers."""

from django.urls import path, re_path

from api.catalog.views import DocsView, EnginesView, IndexView, LivenessView, ReadinessView, SchemaView
from api.compiles.views import CompileArtifactView, CompileDetailView, CompilesView
from api.estimates.views import (
    EstimatesView,
    FitView,
    GpusView,
    HybridView,
    KvCacheView,
    MemoryView,
    ModelsView,
    PatternView,
    RooflineView,
)
from api.grading.assignments import (
    AssignmentsView,
    AssignmentView,
    KeysView,
    KeyView,
    TokensView,
    VariantView,
)
from api.grading.grades import GradesView, IncidentsView, RegradesView, RegradeView
from api.grading.one_call import GradeView
from api.grading.problems import InputsView, ProblemDetailView, ProblemsView, PublishView
from api.grading.submissions import AssignmentSubmissionsView, BatchView, ResultsView, SubmissionView
from api.grading.webhooks import DeliveriesView, ReplayView, WebhookDetailView, WebhooksView
from api.runs.views import ArtifactView, RunDetailView, RunsView
from api.simulations.views import (
    BatchingView,
    PagedAllocatorView,
    PrefixCacheView,
    RecallView,
    SimulationsView,
    SpeculativeView,
)
from api.sweeps.views import SweepDetailView, SweepResultsView, SweepsView
from api.uploads.views import UploadsView
from api.views import not_found

app_name = "api"

urlpatterns = [
    path("", IndexView.as_view(), name="index"),
    path("runs", RunsView.as_view(), name="runs"),
    path("runs/<slug:run_id>", RunDetailView.as_view(), name="run"),
    path("runs/<slug:run_id>/artifacts/<str:name>", ArtifactView.as_view(), name="artifact"),
    path("sweeps", SweepsView.as_view(), name="sweeps"),
    path("sweeps/<slug:sweep_id>", SweepDetailView.as_view(), name="sweep"),
    path("sweeps/<slug:sweep_id>/results", SweepResultsView.as_view(), name="sweep_results"),
    path("compiles", CompilesView.as_view(), name="compiles"),
    path("compiles/<slug:run_id>", CompileDetailView.as_view(), name="compile"),
    path(
        "compiles/<slug:run_id>/artifacts/<str:name>", CompileArtifactView.as_view(), name="compile_artifact"
    ),
    path("problems", ProblemsView.as_view(), name="problems"),
    path("problems/<slug:slug>", ProblemDetailView.as_view(), name="problem"),
    path("problems/<slug:slug>/inputs", InputsView.as_view(), name="problem_inputs"),
    path("problems/<slug:slug>/publish", PublishView.as_view(), name="publish"),
    path("grade", GradeView.as_view(), name="grade"),
    path("assignments", AssignmentsView.as_view(), name="assignments"),
    path("assignments/<slug:assignment_id>", AssignmentView.as_view(), name="assignment"),
    path("assignments/<slug:assignment_id>/tokens", TokensView.as_view(), name="submit_tokens"),
    path("assignments/<slug:assignment_id>/keys", KeysView.as_view(), name="student_keys"),
    path("assignments/<slug:assignment_id>/keys/<path:user_ref>", KeyView.as_view(), name="student_key"),
    path("assignments/<slug:assignment_id>/variants/<path:user_ref>", VariantView.as_view(), name="variant"),
    path(
        "assignments/<slug:assignment_id>/submissions",
        AssignmentSubmissionsView.as_view(),
        name="submissions",
    ),
    path("assignments/<slug:assignment_id>/submissions:batch", BatchView.as_view(), name="batch"),
    path("assignments/<slug:assignment_id>/grades", GradesView.as_view(), name="grades"),
    path("assignments/<slug:assignment_id>/regrades", RegradesView.as_view(), name="regrades"),
    path(
        "assignments/<slug:assignment_id>/regrades/<slug:regrade_id>", RegradeView.as_view(), name="regrade"
    ),
    path("assignments/<slug:assignment_id>/incidents", IncidentsView.as_view(), name="incidents"),
    path("submissions/<slug:submission_id>", SubmissionView.as_view(), name="submission"),
    path("submissions/<slug:submission_id>/results", ResultsView.as_view(), name="results"),
    path("webhooks", WebhooksView.as_view(), name="webhooks"),
    path("webhooks/<slug:webhook_id>", WebhookDetailView.as_view(), name="webhook"),
    path("webhooks/<slug:webhook_id>/deliveries", DeliveriesView.as_view(), name="deliveries"),
    path(
        "webhooks/<slug:webhook_id>/deliveries/<slug:delivery_id>/replay",
        ReplayView.as_view(),
        name="replay",
    ),
    path("uploads", UploadsView.as_view(), name="uploads"),
    path("simulations", SimulationsView.as_view(), name="simulations"),
    path("simulations/paged-allocator", PagedAllocatorView.as_view(), name="simulate_paged_allocator"),
    path("simulations/batching", BatchingView.as_view(), name="simulate_batching"),
    path("simulations/speculative", SpeculativeView.as_view(), name="simulate_speculative"),
    path("simulations/prefix-cache", PrefixCacheView.as_view(), name="simulate_prefix_cache"),
    path("simulations/recall", RecallView.as_view(), name="simulate_recall"),
    path("estimates", EstimatesView.as_view(), name="estimates"),
    path("estimates/kv-cache", KvCacheView.as_view(), name="estimate_kv_cache"),
    path("estimates/memory", MemoryView.as_view(), name="estimate_memory"),
    path("estimates/roofline", RooflineView.as_view(), name="estimate_roofline"),
    path("estimates/fit", FitView.as_view(), name="estimate_fit"),
    path("estimates/pattern", PatternView.as_view(), name="estimate_pattern"),
    path("estimates/hybrid", HybridView.as_view(), name="estimate_hybrid"),
    path("models", ModelsView.as_view(), name="models"),
    path("gpus", GpusView.as_view(), name="gpus"),
    path("engines", EnginesView.as_view(), name="engines"),
    path("healthz", LivenessView.as_view(), name="healthz"),
    path("readyz", ReadinessView.as_view(), name="readyz"),
    path("schema/", SchemaView.as_view(), name="schema"),
    path("docs/", DocsView.as_view(), name="docs"),
    re_path("", not_found),
]
