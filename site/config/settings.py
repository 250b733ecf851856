"""One settings file for every process and every deployment; the environment is its only input.

Everything that an operator may set is read through `env` and starts with ATTENTION_LAB_.
"""

import os
import secrets
import tempfile
from contextlib import suppress
from pathlib import Path

import dj_database_url
from csp.constants import NONE, SELF
from django.utils.translation import gettext_lazy as _

from config import env

ROOT = Path(__file__).resolve().parents[2]
DATA_DIR = Path(env.text("ATTENTION_LAB_DATA_DIR", str(ROOT / "var"))).resolve()


def embedded_secret() -> str:
    """A key made once and kept in the data folder, so that `make run` needs no configuration."""
    path = DATA_DIR / "secret-key"
    if not path.exists():
        DATA_DIR.mkdir(parents=True, exist_ok=True)
        # Under its name there is a whole key or none: two processes may start at once, and either may die.
        descriptor, draft = tempfile.mkstemp(prefix=".secret-key-", dir=DATA_DIR)  # readable by us alone
        try:
            with os.fdopen(descriptor, "w") as file:
                file.write(secrets.token_urlsafe(50))
            with suppress(FileExistsError):  # the other process was first, and its key counts
                os.link(draft, path)
        finally:
            os.unlink(draft)
    return path.read_text()


DEBUG = env.flag("ATTENTION_LAB_DEBUG", False)
SECRET_KEY = env.text("ATTENTION_LAB_SECRET_KEY") or embedded_secret()
# This machine's own names always count: health checks ask from inside.
ALLOWED_HOSTS = ["localhost", "127.0.0.1", "[::1]", *env.words("ATTENTION_LAB_ALLOWED_HOSTS", "")]
CSRF_TRUSTED_ORIGINS = env.words("ATTENTION_LAB_TRUSTED_ORIGINS", "")
HTTPS = env.flag("ATTENTION_LAB_HTTPS", False)
# The commit that runs, where it is not a checkout that says so itself.
COMMIT = env.text("ATTENTION_LAB_COMMIT", "")
NUM_PROXIES = env.integer("ATTENTION_LAB_NUM_PROXIES", 0)

# --- The application -----------------------------------------------------------------------

INSTALLED_APPS = [
    "django.contrib.contenttypes",
    "django.contrib.auth",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.sitemaps",
    "django.contrib.staticfiles",
    "django_htmx",
    "rest_framework",
    "drf_spectacular",
    "drf_spectacular_sidecar",
    "csp",
    "workers",
    "api",
    "concepts",
    "lab",
    "classroom",
    "search",
]

MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "csp.middleware.CSPMiddleware",
    "django.middleware.gzip.GZipMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.locale.LocaleMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "django_htmx.middleware.HtmxMiddleware",
]

ROOT_URLCONF = "config.urls"
WSGI_APPLICATION = "config.wsgi.application"

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [ROOT / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
        },
    },
]

# --- Data ----------------------------------------------------------------------------------

DATABASES = {
    "default": dj_database_url.parse(
        env.text("ATTENTION_LAB_DATABASE_URL", f"sqlite:///{DATA_DIR / 'attention-lab.sqlite3'}"),
        conn_max_age=60,
        conn_health_checks=True,
    ),
}
if DATABASES["default"]["ENGINE"] == "django.db.backends.sqlite3":
    # WAL lets readers and one writer work at once; IMMEDIATE takes the write lock up front, so
    # that two writers wait for each other instead of failing half-way.
    DATABASES["default"]["OPTIONS"] = {
        "transaction_mode": "IMMEDIATE",
        "timeout": 20,
        "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;",
    }

STORAGES = {
    # Inputs and results of runs. Several machines: mount one folder, or name another backend here.
    "default": {
        "BACKEND": "django.core.files.storage.FileSystemStorage",
        "OPTIONS": {"location": DATA_DIR / "artifacts"},
    },
    "staticfiles": {"BACKEND": "whitenoise.storage.CompressedManifestStaticFilesStorage"},
}

STATIC_URL = "/static/"
STATIC_ROOT = ROOT / "static-built"
STATICFILES_DIRS = [ROOT / "static"]
# Compressing well is slow, so only what a browser asks for: the hashed names, and no source maps.
WHITENOISE_KEEP_ONLY_HASHED_FILES = True
WHITENOISE_SKIP_COMPRESS_EXTENSIONS = ("png", "webp", "woff2", "map", "gz", "br")

# --- Language ------------------------------------------------------------------------------

LANGUAGE_CODE = "en"
LANGUAGES = [("en", _("English"))]
LOCALE_PATHS = [ROOT / "templates" / "locale"]
USE_I18N = True
USE_TZ = True
TIME_ZONE = "UTC"

# --- Security ------------------------------------------------------------------------------

CONTENT_SECURITY_POLICY = {
    "DIRECTIVES": {
        "default-src": [NONE],
        "script-src": [SELF],
        "style-src": [SELF],
        "img-src": [SELF, "data:"],
        "font-src": [SELF],
        "connect-src": [SELF],
        "form-action": [SELF],
        "base-uri": [NONE],
        "frame-ancestors": [NONE],
    },
}
SECURE_REFERRER_POLICY = "same-origin"
SECURE_CROSS_ORIGIN_OPENER_POLICY = "same-origin"
X_FRAME_OPTIONS = "DENY"
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = SECURE_SSL_REDIRECT = HTTPS
SECURE_REDIRECT_EXEMPT = [r"^api/v1/(healthz|readyz)$"]  # asked from inside, where there is no HTTPS
SECURE_HSTS_SECONDS = 31_536_000 if HTTPS else 0
if NUM_PROXIES:
    SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https")
SESSION_COOKIE_SAMESITE = CSRF_COOKIE_SAMESITE = "Lax"
MAX_BODY_BYTES = 32 * 1024 * 1024
DATA_UPLOAD_MAX_MEMORY_SIZE = MAX_BODY_BYTES
# What the uploads of one address may hold at once without a token.
ANONYMOUS_UPLOAD_BYTES = env.integer("ATTENTION_LAB_ANONYMOUS_UPLOAD_BYTES", 256 * 1024**2)
# The threads of one web process, and how many of its requests may wait for a run at once: fewer, so that
# waiting never keeps others out (see api.checks).
WEB_THREADS = env.integer("ATTENTION_LAB_WEB_THREADS", 32)
MAX_WAITERS = env.integer("ATTENTION_LAB_MAX_WAITERS", max(0, WEB_THREADS - 8))
# How many estimates and simulations one web process computes at once; these threads are held as well.
MAX_COMPUTING = env.integer("ATTENTION_LAB_MAX_COMPUTING", max(1, min(6, WEB_THREADS // 4)))
DATA_UPLOAD_MAX_NUMBER_FIELDS = 5_000

# The address of a run's page (named, with `run_id`): the API's documents link to it.
RUN_PAGE = "lab:run"
SWEEP_PAGE = "lab:sweep"

# --- Accounts ------------------------------------------------------------------------------

# Whether anybody may make an account; else `manage.py createsuperuser` does.
OPEN_SIGNUP = env.flag("ATTENTION_LAB_OPEN_SIGNUP", True)
LOGIN_URL = "classroom:sign-in"
LOGIN_REDIRECT_URL = "classroom:home"
LOGOUT_REDIRECT_URL = "classroom:sign-in"
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": f"django.contrib.auth.password_validation.{name}"}
    for name in (
        "UserAttributeSimilarityValidator",
        "MinimumLengthValidator",
        "CommonPasswordValidator",
        "NumericPasswordValidator",
    )
]
# Tries in a quarter of an hour that do not succeed: of one address, and for one name from anywhere.
SIGN_INS_PER_ADDRESS = env.integer("ATTENTION_LAB_SIGN_INS_PER_ADDRESS", 50)
SIGN_INS_PER_NAME = env.integer("ATTENTION_LAB_SIGN_INS_PER_NAME", 10)
# Accounts that one address may make in an hour.
SIGN_UPS_PER_ADDRESS = env.integer("ATTENTION_LAB_SIGN_UPS_PER_ADDRESS", 20)

# --- REST ----------------------------------------------------------------------------------

REST_FRAMEWORK = {
    "DEFAULT_AUTHENTICATION_CLASSES": ["api.auth.BearerAuthentication"],
    "DEFAULT_PERMISSION_CLASSES": [],
    "DEFAULT_PARSER_CLASSES": ["api.parsers.StrictJSONParser"],
    "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
    "DEFAULT_SCHEMA_CLASS": "api.openapi.Schema",
    "DEFAULT_VERSIONING_CLASS": None,
    "EXCEPTION_HANDLER": "api.errors.exception_handler",
    "NUM_PROXIES": NUM_PROXIES,
    "UNAUTHENTICATED_USER": None,
}
SPECTACULAR_SETTINGS = {
    "TITLE": "Attention Lab",
    "DESCRIPTION": (
        "Run attention configurations on real kernels and read back outputs, errors, timings and memory."
    ),
    "VERSION": "1",
    "SERVE_INCLUDE_SCHEMA": False,
    # The schemas are written by hand; the default hook would invent component names for their enums.
    "POSTPROCESSING_HOOKS": [],
    "SWAGGER_UI_DIST": "SIDECAR",
}

# --- Queue ---------------------------------------------------------------------------------

REDIS_URL = env.text("ATTENTION_LAB_REDIS_URL", "redis://127.0.0.1:6379/0")
# The queues that this deployment has workers for: /readyz waits for a worker on each.
QUEUES = env.words("ATTENTION_LAB_QUEUES", "cpu,compile,grade,maintenance")

# Seconds; workers.checks asserts that each is below the next (see ARCHITECTURE.md, "Time limits").
RUN_BUDGET_ANONYMOUS = env.integer("ATTENTION_LAB_RUN_BUDGET_ANONYMOUS", 30)
RUN_BUDGET_TOKEN = env.integer("ATTENTION_LAB_RUN_BUDGET_TOKEN", 120)
RUN_SOFT_LIMIT_MARGIN = 5
RUN_HARD_LIMIT_MARGIN = 10
VISIBILITY_TIMEOUT = env.integer("ATTENTION_LAB_VISIBILITY_TIMEOUT", 300)
RUN_MAX_AGE = env.integer("ATTENTION_LAB_RUN_MAX_AGE", 600)
HEARTBEAT_SECONDS = env.integer("ATTENTION_LAB_HEARTBEAT_SECONDS", 2)
HEARTBEAT_TIMEOUT = env.integer("ATTENTION_LAB_HEARTBEAT_TIMEOUT", 15)
REAPER_SECONDS = env.integer("ATTENTION_LAB_REAPER_SECONDS", 5)
MAX_ATTEMPTS = 2
# A run that no worker took for this long is given up, and says so.
QUEUE_MAX_AGE = env.integer("ATTENTION_LAB_QUEUE_MAX_AGE", 3_600)
MAX_QUEUED = env.integer("ATTENTION_LAB_MAX_QUEUED", 2_000)
# How many points of the sweeps of one caller are queued or computed at once: others' runs go in between, and
# times are of one computation on its own. And after how long a sweep that does not get on is given up.
SWEEP_POINTS_AT_ONCE = env.integer("ATTENTION_LAB_SWEEP_POINTS_AT_ONCE", 1)
SWEEP_MAX_AGE = env.integer("ATTENTION_LAB_SWEEP_MAX_AGE", 86_400)
# Of the graders: what they may take for one group of submissions, one mutant matrix or one regrade; how long
# they stay with one assignment before they let another have its turn; after how long a submission that no
# grader took is given up (it is not the student's fault, and a grader may come back in the night).
GRADE_BUDGET = env.integer("ATTENTION_LAB_GRADE_BUDGET", 120)
GRADE_TURN = 5
GRADE_SOFT_LIMIT_MARGIN = 5
GRADE_HARD_LIMIT_MARGIN = 10
GRADE_MAX_AGE = env.integer("ATTENTION_LAB_GRADE_MAX_AGE", 86_400)
MAX_QUEUED_SUBMISSIONS = env.integer("ATTENTION_LAB_MAX_QUEUED_SUBMISSIONS", 20_000)
# The problems that come with the product: Markdown files for `manage.py load_problems`.
COURSE_DIR = ROOT / "site" / "classroom" / "course" / "en"
# Networks that webhooks may reach although they are not public, e.g. of the university itself: 10.1.0.0/16.
WEBHOOK_NETWORKS = env.words("ATTENTION_LAB_WEBHOOK_NETWORKS", "")
RETENTION_DAYS_ANONYMOUS = env.integer("ATTENTION_LAB_RETENTION_DAYS_ANONYMOUS", 90)
RETENTION_DAYS_TOKEN = env.integer("ATTENTION_LAB_RETENTION_DAYS_TOKEN", 730)

# What one run may hold at once in its worker, and give back.
MAX_RUN_BYTES = env.integer("ATTENTION_LAB_MAX_RUN_BYTES", 2 * 1024**3)
MAX_RESULT_ELEMENTS = env.integer("ATTENTION_LAB_MAX_RESULT_ELEMENTS", 32 * 1024**2)

# Quotas of a caller without a token, by address.
ANONYMOUS_RUNS_PER_MINUTE = env.integer("ATTENTION_LAB_ANONYMOUS_RUNS_PER_MINUTE", 120)
ANONYMOUS_SECONDS_PER_HOUR = env.integer("ATTENTION_LAB_ANONYMOUS_SECONDS_PER_HOUR", 1_200)
# Of the web process's own processor time, for estimates and simulations: they take 1 to 600 ms each.
ANONYMOUS_COMPUTING_SECONDS_PER_MINUTE = env.integer(
    "ATTENTION_LAB_ANONYMOUS_COMPUTING_SECONDS_PER_MINUTE", 20
)
TOKEN_COMPUTING_SECONDS_PER_MINUTE = env.integer("ATTENTION_LAB_TOKEN_COMPUTING_SECONDS_PER_MINUTE", 60)

# Of grading, by token, or by the address or the signed key of somebody who has none: requests that read or
# author, and submissions.
GRADING_REQUESTS_PER_MINUTE = env.integer("ATTENTION_LAB_GRADING_REQUESTS_PER_MINUTE", 600)
TOKEN_GRADING_REQUESTS_PER_MINUTE = env.integer("ATTENTION_LAB_TOKEN_GRADING_REQUESTS_PER_MINUTE", 30_000)
SUBMISSIONS_PER_MINUTE = env.integer("ATTENTION_LAB_SUBMISSIONS_PER_MINUTE", 60)
TOKEN_SUBMISSIONS_PER_MINUTE = env.integer("ATTENTION_LAB_TOKEN_SUBMISSIONS_PER_MINUTE", 20_000)

# --- Logs ----------------------------------------------------------------------------------

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"line": {"format": "%(asctime)s %(levelname)s %(name)s %(message)s"}},
    "handlers": {"console": {"class": "logging.StreamHandler", "formatter": "line"}},
    "root": {"handlers": ["console"], "level": env.text("ATTENTION_LAB_LOG_LEVEL", "INFO")},
}
