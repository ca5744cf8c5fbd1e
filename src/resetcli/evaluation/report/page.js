// The filter lives in the address (#why=wrong,truncated&task=aime&doc=2024), so a filtered view can be linked to.
(() => {
  const cards = [...document.querySelectorAll("article")];
  const buttons = [...document.querySelectorAll("button[data-why]")];
  const task = document.getElementById("task");
  const doc = document.getElementById("doc");
  const read = () => new URLSearchParams(location.hash.slice(1));
  const verdicts = (query) => (query.get("why") || "").split(",").filter(Boolean);

  function apply() {
    const query = read();
    const why = verdicts(query);
    task.value = query.get("task") || "";
    if (document.activeElement !== doc) doc.value = query.get("doc") || "";
    let shown = 0;
    for (const card of cards) {
      const data = card.dataset;
      const fits =
        (!why.length || why.includes(data.why)) &&
        (!task.value || data.task === task.value) &&
        data.doc.includes(query.get("doc") || "");
      card.hidden = !fits;
      shown += fits;
    }
    for (const button of buttons) button.setAttribute("aria-pressed", String(why.includes(button.dataset.why)));
    document.getElementById("shown").textContent = `${shown} of ${cards.length} listed`;
  }

  function set(name, value) {
    const query = read();
    if (value) query.set(name, value);
    else query.delete(name);
    location.hash = query.toString();
  }

  for (const button of buttons) {
    button.addEventListener("click", () => {
      const why = new Set(verdicts(read()));
      if (!why.delete(button.dataset.why)) why.add(button.dataset.why);
      set("why", [...why].join(","));
    });
  }
  task.addEventListener("change", () => set("task", task.value));
  doc.addEventListener("input", () => set("doc", doc.value));
  document.getElementById("unfold").addEventListener("click", () => {
    const folds = cards.filter((card) => !card.hidden).flatMap((card) => [...card.querySelectorAll("details.thought")]);
    const open = folds.some((fold) => !fold.open);
    for (const fold of folds) fold.open = open;
  });
  addEventListener("hashchange", apply);
  apply();
})();
