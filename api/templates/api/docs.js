"use strict";

// The theme chosen on the site's pages (static/js/theme.js), or the system's.
(function () {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  let chosen = null;
  try { chosen = localStorage.getItem("theme"); } catch (error) { /* storage is off */ }
  const follow = () => document.documentElement.classList.toggle("dark-mode", chosen ? chosen === "dark" : dark.matches);
  dark.addEventListener("change", follow);
  follow();
})();

SwaggerUIBundle({
  url: "{{ schema_url|escapejs }}",
  dom_id: "#swagger-ui",
  presets: [SwaggerUIBundle.presets.apis],
  layout: "BaseLayout",
  ...{{ settings|safe }},
});
