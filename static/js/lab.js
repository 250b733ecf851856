// Folds of the lab that stay open when what they hold is replaced.
(function () {
  "use strict";

  let open = [];
  document.addEventListener("htmx:beforeSwap", ({ target }) => {
    if (target.matches("[data-keep-folds]")) open = [...target.querySelectorAll("details[open]")].map(({ id }) => id);
  });
  document.addEventListener("htmx:afterSwap", ({ target }) => {
    if (target.matches("[data-keep-folds]")) for (const id of open) document.getElementById(id)?.setAttribute("open", "");
  });
})();
