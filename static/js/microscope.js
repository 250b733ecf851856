// Stepping through the tiles of a run: the slider follows the number box and the other way round, and the arrow
// keys step wherever they mean nothing else. Without this file there are links and a number box.
(function () {
  "use strict";
  const number = () => document.querySelector("[data-scrub-number]");
  const slider = () => document.querySelector("[data-scrub-slider]");

  document.addEventListener("input", ({ target }) => {
    if (!target.matches("[data-scrub-slider]")) return;
    number().value = target.value;
    htmx.trigger(target.closest("form"), "scrub");
  });
  document.addEventListener("change", (event) => {
    if (event.target.matches("[data-scrub-slider]")) event.stopPropagation();
  }, true);

  document.addEventListener("keydown", (event) => {
    const by = { ArrowLeft: "-1", ArrowRight: "1" }[event.key];
    if (!by || event.ctrlKey || event.metaKey || event.altKey || event.shiftKey) return;
    if (event.target.closest("input, select, textarea, [tabindex='0'], summary")) return;
    const link = document.querySelector(`[data-step="${by}"]`);
    if (!link) return;
    event.preventDefault();
    link.click();
  });

  document.addEventListener("htmx:afterSettle", () => {
    const step = document.querySelector("#step[data-tile]");
    if (!step || !number()) return;
    for (const input of [number(), slider()]) {
      if (input && input !== document.activeElement) input.value = step.dataset.tile;
    }
  });
})();
