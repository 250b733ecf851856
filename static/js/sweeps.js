// Conveniences of sweeps: fields that say when they are wrong, and folds that stay open when points come in.
(function () {
  "use strict";

  const open = new Set();
  document.addEventListener("toggle", ({ target }) => {
    if (target.id && target.closest("#sweep-body")) open[target.open ? "add" : "delete"](target.id);
  }, true);

  function reopen() {
    for (const id of open) document.getElementById(id)?.setAttribute("open", "");
  }

  function mark() {
    for (const said of document.querySelectorAll("[data-said-of]")) {
      const field = document.getElementById(said.dataset.saidOf);
      if (!field?.matches("input")) continue;
      if (said.querySelector(".error")) field.setAttribute("aria-invalid", "true");
      else field.removeAttribute("aria-invalid");
    }
  }

  document.addEventListener("htmx:oobAfterSwap", reopen);
  document.addEventListener("htmx:afterSettle", () => { reopen(); mark(); });
})();
