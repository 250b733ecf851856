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
from api.runs.views import ArtifactView, RunDetailView, RunsView
from api.simulations.views import (
    BatchingView,
    PagedAllocatorView,
    PrefixCacheView,
    RecallView,
    SimulationsView,
    SpeculativeView,
)
from api.uploads.views import UploadsView
from api.views import not_found

app_name = "api"

urlpatterns = [
    path("", IndexView.as_view(), name="index"),
    path("runs", RunsView.as_view(), name="runs"),
    path("runs/<slug:run_id>", RunDetailView.as_view(), name="run"),
    path("runs/<slug:run_id>/artifacts/<str:name>", ArtifactView.as_view(), name="artifact"),
    path("compiles", CompilesView.as_view(), name="compiles"),
    path("compiles/<slug:run_id>", CompileDetailView.as_view(), name="compile"),
    path(
        "compiles/<slug:run_id>/artifacts/<str:name>", CompileArtifactView.as_view(), name="compile_artifact"
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
