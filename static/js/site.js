// The theme toggle and other small conveniences of every page. Pages work without it.
(function () {
  "use strict";
  const root = document.documentElement;
  const dark = matchMedia("(prefers-color-scheme: dark)");

  document.addEventListener("click", (event) => {
    const toggle = event.target.closest("[data-theme-toggle]");
    if (toggle) {
      const now = root.dataset.theme || (dark.matches ? "dark" : "light");
      const next = now === "dark" ? "light" : "dark";
      root.dataset.theme = next;
      try { localStorage.setItem("theme", next); } catch (error) { /* not remembered */ }
    }
    const copy = event.target.closest("[data-copy]");
    if (copy && navigator.clipboard) {
      const source = document.querySelector(copy.dataset.copy);
      navigator.clipboard.writeText(source.value || source.textContent).then(() => {
        const label = copy.textContent;
        copy.textContent = copy.dataset.copied || "✓";
        setTimeout(() => { copy.textContent = label; }, 1500);
      });
    }
  });

  // Answers and notes that are folded on the screen are printed open.
  let folded = [];
  addEventListener("beforeprint", () => {
    folded = [...document.querySelectorAll("details:not([open])")];
    folded.forEach((element) => { element.open = true; });
  });
  addEventListener("afterprint", () => folded.forEach((element) => { element.open = false; }));
})();
