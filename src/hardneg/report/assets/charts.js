"use strict";
(() => {
  const specs = JSON.parse(document.getElementById("charts").textContent);
  const drawn = [...document.querySelectorAll("[data-chart]")].map((place) =>
    vegaEmbed(place, specs[place.dataset.chart], {
      actions: false,
      renderer: "svg",
      tooltip: { theme: matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light" },
    }).then(
      () => place.classList.add("drawn"),
      (fault) => {
        place.textContent = "This chart could not be drawn; its numbers are in the table below.";
        console.error(place.dataset.chart, fault);
      },
    ),
  );
  Promise.all(drawn).then(() => document.documentElement.classList.add("charts-drawn"));
})();
